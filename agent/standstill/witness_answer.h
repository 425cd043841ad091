// The answer of a worker's witness (agent/standby/python/witness.py). It has the stack of the
// main thread, and how far the worker is in each process group. Nothing in it is trusted to be well
// formed. Pure. Any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/standstill.h"

namespace ddprun::agent {

// The longest file that is read.
inline constexpr std::size_t kMostAnswerBytes = std::size_t{1} << 20;

struct WitnessFrame {
  bool is_own = false;  // a file of the user, and not of Python or of a package
  std::string function;
  std::string file;
  int line = 0;

  bool operator==(const WitnessFrame&) const = default;
};

struct WitnessAnswer {
  std::vector<WitnessFrame> stack;  // the innermost frame first
  std::string inside{};  // the outermost function of torch.distributed that it is in; empty: none
  std::vector<rendezvous::GroupPosition> groups;

  bool operator==(const WitnessAnswer&) const = default;
};

// Nothing if the text has not come to its end. Lines that it does not know are skipped.
std::optional<WitnessAnswer> parse_witness_answer(std::string_view text);

// The innermost frame of the user, else the innermost one: "train (hang.py:18)". Empty without a
// stack.
std::string place_in(const std::vector<WitnessFrame>& stack);

}  // namespace ddprun::agent
