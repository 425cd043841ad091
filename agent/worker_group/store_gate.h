// Says who of this host may connect to the store of a round. They are root, the job's user, and
// each user as which a process of the job runs. A worker may have become another user. The TCPStore
// protocol has no authentication, and every user of a host reaches its loopback. Loop's thread;
// owned by WorkerGroup.
#pragma once

#include <sys/types.h>

#include <functional>
#include <set>

#include "agent/core/clock.h"
#include "store/peer_user.h"

namespace ddprun::agent {

// The users as which `pid` and the processes below it run now.
std::set<uid_t> users_below(pid_t pid);

class StoreGate {
 public:
  // `users` answers as users_below(). It is asked for a user that is not known, and not more than
  // once in kAskAgain. Others must not keep the loop busy.
  explicit StoreGate(std::function<std::set<uid_t>()> users);

  static constexpr std::chrono::milliseconds kAskAgain{50};

  // Asks of a connection that was accepted just now. Peers on other hosts are admitted, and those
  // whose user the kernel does not tell. The first refusal is logged.
  bool admits(int fd);
  // The same of a known user: pure but for `users`.
  bool admits(const store::PeerUser& peer, Time now);

 private:
  std::function<std::set<uid_t>()> users_;
  store::PeerUsers peers_;
  std::set<uid_t> known_;
  Time ask_at_{};
  bool logged_ = false;
};

}  // namespace ddprun::agent
