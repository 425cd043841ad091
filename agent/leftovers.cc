#include "agent/leftovers.h"

#include <sys/types.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>

#include "agent/job_cgroup.h"
#include "agent/job_cookie.h"
#include "agent/shared_memory.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

// Whether a cookie's launcher is gone, asked once per cookie.
class Launchers {
 public:
  bool gone(std::string_view text) {
    const auto cookie = parse_job_cookie(text);
    if (!cookie) return false;
    const auto [known, is_new] = gone_.try_emplace(cookie->text(), false);
    if (is_new) known->second = launcher_is_gone(*cookie);
    return known->second;
  }

 private:
  std::map<std::string, bool> gone_;
};

// The cookie in the environment of `pid`; empty where there is none or it is not ours to read.
std::string cookie_of(const fs::path& proc_folder) {
  std::ifstream file(proc_folder / "environ", std::ios::binary);
  const std::string prefix = std::string(kCookieVariable) + "=";
  for (std::string entry; std::getline(file, entry, '\0');) {
    if (entry.starts_with(prefix)) return entry.substr(prefix.size());
  }
  return {};
}

bool is_pid(const std::string& name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
}

std::size_t end_processes(Launchers& launchers) {
  std::size_t ended = 0;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", failed)) {
    const std::string name = entry.path().filename();
    if (!is_pid(name)) continue;
    const std::string cookie = cookie_of(entry.path());
    if (cookie.empty() || !launchers.gone(cookie)) continue;
    if (::kill(static_cast<pid_t>(std::stol(name)), SIGKILL) == 0) ++ended;
  }
  return ended;
}

// Names that begin with `prefix`, without it.
template <typename Act>
void for_each_named(const std::string& folder, const std::string& prefix, Act act) {
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(prefix)) act(name.substr(prefix.size()));
  }
}

void end_cgroups(Launchers& launchers) {
  const std::string folder = own_cgroup_folder();
  if (folder.empty()) return;
  for_each_named(folder, kCgroupPrefix, [&](const std::string& cookie) {
    if (launchers.gone(cookie)) end_job_cgroup(cookie);
  });
}

}  // namespace

std::size_t end_leftovers() {
  Launchers launchers;
  end_cgroups(launchers);
  const std::size_t ended = end_processes(launchers);
  for_each_named("/dev/shm", "ddprun-", [&](const std::string& cookie) {
    if (const auto parsed = parse_job_cookie(cookie); parsed && launchers.gone(cookie))
      remove_shared_memory(parsed->text());
  });
  end_cgroups(launchers);  // empty by now, most likely
  return ended;
}

}  // namespace ddprun::agent
