#include "launcher/job/device_files.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>
#include <system_error>

#include "launcher/options/flag_values.h"

namespace ddprun::launcher {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  const std::ifstream file(path);
  std::ostringstream all;
  all << file.rdbuf();  // an iterator over the buffer would throw where reading fails
  std::string text = all.str();
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0)
    text.pop_back();
  return text;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<int> numbers_in(const fs::path& folder, std::string_view prefix) {
  std::vector<int> numbers;
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    if (rest.find_first_not_of("0123456789") != std::string_view::npos) continue;
    if (const auto number = parse_int(rest)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::string value_in(std::string_view text, std::string_view name, char separator) {
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!line.starts_with(name) || line.substr(name.size()).find(separator) != 0) continue;
    line.remove_prefix(name.size() + 1);
    const auto first = line.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    return std::string(line.substr(first, line.find_last_not_of(" \t") - first + 1));
  }
  return {};
}

std::string driver_of(const fs::path& device) {
  std::string driver = value_in(read_text(device / "uevent"), "DRIVER", '=');
  std::error_code error;
  if (driver.empty()) driver = fs::read_symlink(device / "driver", error).filename();
  return driver;
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool may_open(const fs::path& path) { return ::access(path.c_str(), R_OK | W_OK) == 0; }

}  // namespace ddprun::launcher
