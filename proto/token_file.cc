#include "proto/token_file.h"

#include <fmt/format.h>

#include <fstream>

namespace ddprun {

Result<std::string> read_token_file(const std::string& path, const std::string& named) {
  // Reads one byte more than allowed, to tell a file that is too long. A file that cannot be read
  // gives no bytes, and so an empty token.
  std::ifstream file(path, std::ios::binary);
  std::string content(kMaxTokenBytes + 1, '\0');
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  content.resize(static_cast<std::size_t>(file.gcount()));
  const bool is_too_long = content.size() > kMaxTokenBytes;
  constexpr const char* kBlanks = " \t\r\n";
  content.erase(content.find_last_not_of(kBlanks) + 1);
  content.erase(0, content.find_first_not_of(kBlanks));
  if (content.empty() || is_too_long)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: expected a readable file with a token of 1 to {} bytes", named,
                             kMaxTokenBytes));
  return content;
}

}  // namespace ddprun
