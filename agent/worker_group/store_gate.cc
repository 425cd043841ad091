#include "agent/worker_group/store_gate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "agent/processes/descendants.h"
#include "agent/processes/process.h"
#include "base/log.h"

namespace ddprun::agent {
namespace {

// Within a user namespace the kernel names users of the outside with this number alone
// (user_namespaces(7)). 0: this process is in no such namespace.
uid_t user_that_is_unknown() {
  constexpr const char* kAllUsers = "4294967295";
  std::ifstream map("/proc/self/uid_map");
  std::string inside;
  std::string outside;
  std::string count;
  if (!(map >> inside >> outside >> count) || (outside == "0" && count == kAllUsers)) return 0;
  std::ifstream file("/proc/sys/kernel/overflowuid");
  uid_t user = 0;
  file >> user;
  return user;
}

}  // namespace

std::set<uid_t> users_below(pid_t pid) {
  std::vector<pid_t> all = descendants(pid);
  all.push_back(pid);
  std::set<uid_t> users;
  for (const pid_t one : all) {
    const std::string status = read_proc_file(one, "status");
    const auto line = status.find("\nUid:");
    if (line == std::string::npos) continue;
    std::istringstream numbers(status.substr(line + 5, status.find('\n', line + 1) - line - 5));
    for (uid_t user = 0; numbers >> user;) users.insert(user);
  }
  return users;
}

StoreGate::StoreGate(std::function<std::set<uid_t>()> users)
    : users_(std::move(users)), known_{0, ::geteuid()} {
  if (const uid_t unknown = user_that_is_unknown(); unknown != 0) known_.insert(unknown);
}

bool StoreGate::admits(int fd) { return admits(peers_.of(fd), now()); }

bool StoreGate::admits(const store::PeerUser& peer, Time now) {
  using Kind = store::PeerUser::Kind;
  if (peer.kind == Kind::kOtherHost || peer.kind == Kind::kUnknown) return true;
  // Its process has closed it: nobody waits for an answer.
  if (peer.kind == Kind::kNobody) return false;
  if (known_.contains(peer.user)) return true;
  if (now >= ask_at_) {
    ask_at_ = now + kAskAgain;
    known_.merge(users_());
    if (known_.contains(peer.user)) return true;
  }
  if (!std::exchange(logged_, true))
    log::warning(fmt::format(
        "store: connections of user {} of this host are refused: no process of this job runs as "
        "that user; DDPRUN_STORE_USERS=any lets all users connect",
        peer.user));
  return false;
}

}  // namespace ddprun::agent
