// A job's token in a file, which keeps it off command lines, and how long a token and the id that
// stands in for one may be. Reads a file; any thread.
#pragma once

#include <sys/prctl.h>

#include <cstddef>
#include <string>

#include "proto/result.h"

namespace ddprun {

// Workers do not inherit it, and no other program that we start.
inline constexpr const char* kTokenVariable = "DDPRUN_TOKEN";

// A longer file is no token file but a mistake.
inline constexpr std::size_t kMaxTokenBytes = 4096;
// Of a rendezvous id: each call to a host carries it.
inline constexpr std::size_t kMaxJobBytes = 255;

// What is in the file, without blanks around it: 1 to kMaxTokenBytes bytes. `named` is
// how the user gave the path, "--token-file=PATH".
Result<std::string> read_token_file(const std::string& path, const std::string& named);

// Keeps the memory of this process, which has a token in it, from other processes of its user and from
// core dumps, until exec(): workers are as open as ever. The same holds for processes forked from now
// on. For a user that is not root, /proc/<pid> then belongs to root (prctl(2), PR_SET_DUMPABLE).
inline void hide_memory() { ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); }

}  // namespace ddprun
