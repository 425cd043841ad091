// Text scripts for the state machines. A script is blocks of
//
//   command word key=value …
//   ----
//   what it printed, line by line
//
// with an empty line between blocks; '#' starts a comment line, kept where it is. With
// DDPRUN_REWRITE=1 in the environment the outputs are written anew instead of compared, and the
// diff is the review.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace ddprun::support {

struct Command {
  std::vector<std::string> words;             // those without '='
  std::map<std::string, std::string> values;  // key=value

  std::string value(const std::string& key, const std::string& otherwise) const {
    const auto found = values.find(key);
    return found == values.end() ? otherwise : found->second;
  }
  int number(const std::string& key, int otherwise) const {
    return std::stoi(value(key, std::to_string(otherwise)));
  }
};

inline Command parse_command(const std::string& line) {
  Command command;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    if (equals == std::string::npos) {
      command.words.push_back(word);
    } else {
      command.values[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  return command;
}

// `run` answers a command's output: lines, each ended by a newline.
inline void run_script(const std::string& path, const std::function<std::string(Command)>& run) {
  std::ifstream file(path);
  ASSERT_TRUE(file) << "cannot read " << path;
  std::ostringstream rewritten;
  int line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    rewritten << line << '\n';
    if (line.empty() || line.front() == '#') continue;
    const std::string output = run(parse_command(line));
    std::string expected;
    std::string next;
    ASSERT_TRUE(std::getline(file, next) && next == "----") << path << ":" << line_number + 1;
    int lines = 1;
    while (std::getline(file, next) && !next.empty()) expected += next + '\n', ++lines;
    EXPECT_EQ(expected, output) << path << ":" << line_number << ": " << line;
    line_number += lines + 1;
    rewritten << "----\n" << output << '\n';
  }
  EXPECT_GT(line_number, 0) << path << " is empty";
  const char* const rewrite = std::getenv("DDPRUN_REWRITE");  // NOLINT(concurrency-mt-unsafe)
  if (rewrite != nullptr && *rewrite == '1') std::ofstream(path) << rewritten.str();
}

// The names of the scripts in `folder`, without their ending, in order.
inline std::vector<std::string> script_names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().stem().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace ddprun::support
