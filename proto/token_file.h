// A job's token in a file, which keeps it off command lines. The most bytes of a token and of a
// job's id. A check whether others can read a file with a secret: a token or a private key. Any
// thread.
#pragma once

#include <sys/prctl.h>
#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddprun {

// Workers do not inherit it, and no other program that we start.
inline constexpr const char* kTokenVariable = "DDPRUN_TOKEN";

// A token with fewer bytes can be found by trying.
inline constexpr std::size_t kShortToken = 16;
// A longer file is no token file but a mistake.
inline constexpr std::size_t kMaxTokenBytes = 4096;
// The most bytes of a rendezvous id: each call to a host carries it.
inline constexpr std::size_t kMaxJobBytes = 255;

// Reads the token in the file, without blanks around it: 1 to kMaxTokenBytes bytes. A file that
// others can read is refused. `named` is how the user gave the path, "--token-file=PATH".
Result<std::string> read_token_file(const std::string& path, const std::string& named);

// Keeps the memory of this process, which has a token in it, from others. They are its user's other
// processes, and core dumps. This ends with exec(): workers are as open as ever. The same holds for
// processes forked from now on. For a user that is not root, /proc/<pid> then belongs to root
// (prctl(2), PR_SET_DUMPABLE).
inline void hide_memory() { ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); }

// The kernel's facts of an open file, and of us.
struct SecretFacts {
  uid_t owner = 0;
  gid_t group = 0;
  mode_t mode = 0;
  bool is_read_only_memory = false;  // on a tmpfs or ramfs that is mounted read-only
  uid_t self = 0;
  std::vector<gid_t> groups{};  // ours
};

// Only we or root own it, and only the owner may read it. Two more are taken, since root made them
// for us. One is a file of root's that our own group may read. It may be a Kubernetes secret with
// fsGroup, or a service's file in /etc. The other is one in read-only memory (a Kubernetes or
// Docker secret, a credential of systemd). Pure.
bool is_secret(const SecretFacts& facts);

// Says what is wrong with the open file at `path`, and what to type. Nothing if it is secret.
std::optional<std::string> exposure_of(int fd, const std::string& path);

}  // namespace ddprun
