// Ends every process below this one: what workers forked twice, put into sessions of their own or
// left behind. Works because the caller is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): an
// orphan becomes its child, wherever it tried to go. Used by the agent between attempts and at the
// end, and by the guardian. Blocks, within a limit.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace ddprun::agent {

// How long a sweep waits for killed processes to go. Only one in uninterruptible sleep (a dead
// network disk, a driver) takes longer than milliseconds; it is named and left.
inline constexpr std::chrono::milliseconds kSweepLimit{5000};

// Every live descendant of `root` (not `root` itself), from /proc/<pid>/task/<tid>/children
// (proc(5)); `spared` children of it and all below them are left out.
std::vector<pid_t> descendants(pid_t root, const std::set<pid_t>& spared = {});

// The direct children of this process.
std::set<pid_t> own_children();

// A process that SIGKILL did not end within the limit.
struct Stuck {
  pid_t pid = 0;
  std::string name;          // comm
  std::string wait_channel;  // process.h
};

// One line for people, without newline.
std::string describe(const Stuck& stuck);

// SIGKILLs all descendants of the calling process, reaps them, and repeats until there are none or
// `limit` has passed. Returns those left. Children that are reaped here are lost to waitpid: call
// it when no worker is alive, or when nobody will ask for their status any more. `spared` children
// were here before us (`monitor & exec ddprun …`): they and what is below them live on.
std::vector<Stuck> end_descendants(std::chrono::milliseconds limit = kSweepLimit,
                                   const std::set<pid_t>& spared = {});

}  // namespace ddprun::agent
