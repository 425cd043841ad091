// Stacks by py-spy, a program that reads the memory of a Python process (https://pypi.org/project/
// py-spy). It is asked about workers whose witness does not answer, or that have none. It does not
// stop them. Nothing is needed of it: without it, or if it is not allowed to read, there is no
// stack. Loop's thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "agent/standstill/witness_answer.h"
#include "base/file_handle.h"

namespace ddprun::agent {

// The path of a py-spy beside the interpreter of this worker, or on PATH. Empty: there is none, the
// worker is no Python, or it runs as another user.
std::string find_py_spy(pid_t worker);

// One question, while it lives.
class PySpy {
 public:
  // Starts it. It writes into `file`, which is made anew.
  PySpy(const std::string& program, pid_t worker, std::string file);
  PySpy(const PySpy&) = delete;
  PySpy& operator=(const PySpy&) = delete;
  PySpy(PySpy&&) = delete;
  PySpy& operator=(PySpy&&) = delete;
  // One that has not ended is killed.
  ~PySpy();

  bool has_ended() const;
  // Nothing if it has not ended, or knows no stack.
  std::optional<WitnessAnswer> answer() const;

 private:
  const pid_t worker_;
  const std::string file_;
  FileHandle process_;  // a pidfd
};

// The main thread's stack of what py-spy prints. Pure.
std::optional<WitnessAnswer> parse_py_spy(std::string_view text, pid_t worker);

}  // namespace ddprun::agent
