// A job's token in a file, which keeps it off command lines, and how long a token and the id that
// stands in for one may be. Reads a file; any thread.
#pragma once

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

}  // namespace ddprun
