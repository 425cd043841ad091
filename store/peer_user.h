// Finds out which user of this host is at the other end of a TCP connection. A TCP socket does not
// tell, as SO_PEERCRED of a Unix socket does. The kernel's table of sockets does: sock_diag(7), or
// if that is missing /proc/net/tcp. Some microseconds a question. One thread at a time.
#pragma once

#include <sys/types.h>

#include <string_view>

#include "base/file_handle.h"

struct sockaddr_storage;

namespace ddprun::store {

struct PeerUser {
  enum class Kind {
    kOtherHost,  // the peer's address is none of this host
    kUnknown,    // the kernel does not tell
    kNobody,     // no process has the peer's socket open any more
    kUser,       // `user` has it
  };
  Kind kind = Kind::kUnknown;
  uid_t user = 0;
};

class PeerUsers {
 public:
  // The user at the other end of the connected socket `fd`.
  PeerUser of(int fd);

 private:
  PeerUser ask(const sockaddr_storage& own, const sockaddr_storage& peer);

  FileHandle netlink_;
  bool has_diag_ = true;  // until it turned out that the kernel has none
};

// The line of /proc/net/tcp or tcp6 with this local and remote address, as such a line has them:
// "0100007F:1F90". kNobody: there is none, or no process has it.
PeerUser user_in_table(std::string_view table, std::string_view local, std::string_view remote);

}  // namespace ddprun::store
