// The words of a command line, sorted into flags and operands by a table of getopt_long(3). Knows
// no flag's meaning. Two threads must not call it at a time: getopt(3) has one state.
#pragma once

#include <getopt.h>

#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddprun::daemon {

struct ParsedWords {
  struct Flag {
    int value = 0;     // option::val
    std::string text;  // empty where the flag takes none
  };
  std::vector<Flag> flags;  // in their order
  std::vector<std::string> operands;
};

// `flags`: with the empty one at its end; -h is a flag of the table. Errors: kInvalidArgument, a
// word that is no flag, or without its value.
Result<ParsedWords> sort_words(std::vector<std::string> words, std::span<const option> flags);

}  // namespace ddprun::daemon
