// The stack of a rank's main thread, as its node sees it when an operator asks (ddpctl stacks).
// Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::rendezvous {

struct StackFrame {
  std::string function;
  std::string file;
  int line = 0;

  bool operator==(const StackFrame&) const = default;
};

struct RankStack {
  int rank = 0;                      // global
  int pid = 0;                       // 0: its process has ended
  std::vector<StackFrame> frames{};  // the innermost one first
  std::string why{};                 // there are no frames; empty: there are
  std::string waits_in{};  // the call in which it waits for others: "all_reduce #51 (1000x3)"
  std::string kernel{};    // the process's state, and the kernel function in which it sleeps
  std::int64_t steps = 0;  // of its optimizers; 0 also if it counts none

  bool operator==(const RankStack&) const = default;
};

}  // namespace ddprun::rendezvous
