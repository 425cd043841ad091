// The messages between an agent and a standby (docs/recovery.md). The agent's end is
// agent/standby/standbys.cc; the other ends are worker/startup/standby.cc and
// agent/standby/python/standby.py (the hidden names also stand in sitecustomize.py).
//
// A standby finds its connection, a stream, by DDPRUN_HOOK. It says `w` when it waits. It gets 8
// bytes, the size of what follows (little-endian), with two descriptors (SCM_RIGHTS, stdout and
// stderr). Then it gets the variables that differ from those that it was started with. Each is
// NAME=VALUE, or NAME for one that is gone, with a zero byte at its end. It says `g` and goes. At
// any time it may say `!` and why it will not do, and end.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

// DDPRUN_HOOK=<pid of the agent>:<descriptor of the connection>, or nothing behind the colon: a
// worker.
inline constexpr const char* kHookVariable = "DDPRUN_HOOK";

// A standby is started with these under their hidden names, and gives them back before anything
// reads them. People and programs look for the worker of a rank in /proc/<pid>/environ.
inline constexpr std::array<const char*, 2> kHiddenVariables = {"RANK", "LOCAL_RANK"};
// `?` for the first letter, so that both names have the same length.
std::string hidden_name(std::string_view name);

// The first 8 bytes of a release, and what goes with them.
struct ReleaseHead {
  std::uint64_t size = 0;             // bytes of variables that follow
  std::array<int, 2> output{-1, -1};  // stdout, stderr. The receiver owns what it gets
};

// False if the other end is gone, or cannot take it.
bool send_release_head(int socket, const ReleaseHead& head);
// Waits for it. Nothing if the other end is gone, or it was something else.
std::optional<ReleaseHead> receive_release_head(int socket);

}  // namespace ddprun
