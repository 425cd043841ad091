// Attempts that end in the same way, each before a step of training. The user reads once that
// trying again changes nothing. Some of these deaths cannot change with another try. Examples are a
// program that does not parse, does not take its arguments, or imports what is not there. Pure.
// Owned by Reporter.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ddprun::agent {

// The first death of an attempt on this node.
struct Death {
  int exit_code = 0;
  std::string last_line{};  // of its stderr; empty: not known
  std::chrono::milliseconds lived{0};
  bool stepped = false;  // a worker of the attempt had done a step

  bool operator==(const Death&) const = default;
};

// A death that comes later than that does not belong to the start of a program.
inline constexpr std::chrono::seconds kLongestStart{60};
// So many deaths of one kind, and no more, for a program that cannot start.
inline constexpr int kPointlessDeaths = 3;

// The last line that says something, without a `[rank0]: ` before it. `lines`: the end of stderr,
// oldest first.
template <typename Lines>
std::string last_said(const Lines& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (line->find_first_not_of(" \t\r│╰─╯") == std::string::npos) continue;
    const bool is_tagged = line->starts_with("[rank") && line->find("]: ") != std::string::npos;
    return is_tagged ? line->substr(line->find("]: ") + 3) : *line;
  }
  return {};
}

// Returns whether no other try can end otherwise, as far as the last words tell. Python found an
// error in the program's text, or a module or the program's own file missing. Or argparse or click
// refused an argument.
bool cannot_start(const Death& death);

class RepeatedDeaths {
 public:
  // An attempt has failed.
  void add(const Death& death);
  // Returns whether `death`, which is not added yet, would be one too many for a program that
  // cannot start.
  bool is_pointless(const Death& death) const;
  // If it is false, is_pointless() is false for every death, so nobody need look at its last words.
  bool may_be_pointless() const { return row_ + 1 >= kPointlessDeaths && cannot_start(last_); }
  // One clause for the end of a job that failed: "the last 4 attempts ended in the same way …".
  // Empty if there are no two in a row.
  std::string clause() const;

 private:
  bool continues(const Death& death) const;

  Death last_;
  int row_ = 0;    // attempts that ended as the last one did
  int total_ = 0;  // attempts that failed
};

}  // namespace ddprun::agent
