// Shell scripts as workers, for tests of real processes.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "agent/processes/children.h"

namespace ddprun::agent {

// A pipe whose write end a worker gets as stdout; text() reads until every holder is gone.
class Output {
 public:
  Output() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reader_ = FileHandle(ends[0]);
    writer_ = FileHandle(ends[1]);
  }
  FileHandle writer() { return std::move(writer_); }
  std::string text() {
    std::string all;
    std::array<char, 4096> buffer;
    for (ssize_t got = 0; (got = ::read(reader_.get(), buffer.data(), buffer.size())) > 0;)
      all.append(buffer.data(), static_cast<std::size_t>(got));
    return all;
  }
  // Blocks until one line has come: the worker is ready.
  std::string line() {
    std::string one;
    for (char byte = 0; ::read(reader_.get(), &byte, 1) == 1 && byte != '\n';) one += byte;
    return one;
  }

 private:
  FileHandle reader_;
  FileHandle writer_;
};

inline SpawnSpec shell(int local_rank, const std::string& script) {
  return {.local_rank = local_rank,
          .file = "/bin/sh",
          .argv = {"sh", "-c", script},
          .env = {"PATH=/usr/bin:/bin", "X=y"}};
}

// Starts it with `output` as its stdout. We hold no write end of that afterwards.
inline Result<pid_t> spawn(Children& children, SpawnSpec spec, Output& output) {
  spec.out = output.writer();
  return children.spawn(spec);
}

// Waits for a child's death without reaping it.
inline void wait_for_a_death() {
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT), 0);
}

inline std::vector<WorkerExit> reap_all(Children& children) {
  std::vector<WorkerExit> exits;
  while (children.live() > 0) {
    wait_for_a_death();
    for (const WorkerExit& exit : children.reap()) exits.push_back(exit);
  }
  return exits;
}

}  // namespace ddprun::agent
