#include "daemon/parsed_words.h"

#include <fmt/format.h>

namespace ddprun::daemon {

Result<ParsedWords> sort_words(std::vector<std::string> words, std::span<const option> flags) {
  words.insert(words.begin(), "program");
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ParsedWords given;
  ::optind = 0;  // getopt(3): begins anew
  ::opterr = 0;
  const int count = static_cast<int>(words.size());
  for (;;) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): at start there is one thread
    const int value = ::getopt_long(count, argv.data(), "h", flags.data(), nullptr);
    if (value < 0) break;
    if (value == '?')
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("{}: an unknown option, or its value is missing or too much",
                               argv[static_cast<std::size_t>(::optind - 1)]));
    given.flags.push_back({value, ::optarg == nullptr ? "" : ::optarg});
  }
  for (auto i = static_cast<std::size_t>(::optind); i < words.size(); ++i)
    given.operands.emplace_back(argv[i]);
  return given;
}

}  // namespace ddprun::daemon
