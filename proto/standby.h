// The messages between an agent and a standby (docs/recovery.md) or a fork server
// (docs/shared_imports.md). The agent's ends are in agent/standby/: standbys.cc and fork_server.cc.
// The other ends are worker/startup/standby.cc and agent/standby/python/. The hidden names also
// stand in sitecustomize.py there.
//
// A standby finds its connection, a stream, by DDPRUN_HOOK. It says `w` when it waits; one that a
// fork server has made says its pid behind that. It gets 8 bytes, the size of what follows
// (little-endian), with two descriptors (SCM_RIGHTS, stdout and stderr). Then it gets the variables
// that differ from those that it was started with. Each is NAME=VALUE, or NAME for one that is
// gone, with a zero byte at its end. It says `g` and goes. At any time it may say `!` and why it
// will not do, and end.
//
// A fork server says `w` when its imports are done. It says `n` if there is nothing to import. It
// says `!` and why if it ends. It gets 8 bytes, the size of a text, and the text. Each line of it
// but the first is the DDPRUN_PAGE of a worker or standby. The first is one of these:
//
//   learn            It imports what the notes of these pages name, and remembers it for the next
//                    run. Then it says `l`.
//   remember         The same, but it imports nothing.
//   fork             It makes a standby for each page. Their connections come as descriptors. The
//                    first thing that is said on them is the size of variables (8 bytes), and the
//                    variables that differ from the fork server's.
//   fork in cgroup   The same. The first descriptor is the folder of their cgroup.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ddprun {

// DDPRUN_HOOK=<pid of the agent>:<descriptor of the connection>, or nothing behind the colon: a
// worker. With `:fork` behind it: a fork server.
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

// Sends the size of a text that follows, with descriptors, at most kMostDescriptors. False if the
// other end is gone, or cannot take it.
inline constexpr std::size_t kMostDescriptors = 250;  // SCM_MAX_FD is 253 (unix(7))
bool send_head(int socket, std::uint64_t size, std::span<const int> descriptors);

// The same for a release.
bool send_release_head(int socket, const ReleaseHead& head);
// Waits for it. Nothing if the other end is gone, or it was something else.
std::optional<ReleaseHead> receive_release_head(int socket);

}  // namespace ddprun
