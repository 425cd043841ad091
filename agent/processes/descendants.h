// Finds and ends every process below this one. Workers may have forked it twice, put it into a
// session of its own or left it behind. This works only if the caller is a subreaper (prctl(2),
// PR_SET_CHILD_SUBREAPER). The kernel gives it every orphan below it as a child, so no process can
// leave. The agent uses it between attempts and at the end, the guardian after the agent's end.
// Blocks, within a limit. It keeps no state.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace ddprun::agent {

// How long end_descendants() waits for killed processes. Most are gone after milliseconds. A
// process in uninterruptible sleep (a dead network disk, a driver) may need for ever: it is named
// and left.
inline constexpr std::chrono::milliseconds kSweepLimit{5000};

// Every descendant of `root`, without `root` itself; dead ones that nobody has reaped are included.
// Children of `root` that are in `spared`, and all below them, are left out. The source is
// /proc/<pid>/task/<tid>/children (proc(5)). The kernel may skip a process there if others end
// while we read: look again if none may be missed.
std::vector<pid_t> descendants(pid_t root, const std::set<pid_t>& spared = {});

// The direct children of this process.
std::set<pid_t> own_children();

// A process that was still there at the end of the limit after SIGKILL.
struct Stuck {
  pid_t pid = 0;
  std::string name;          // comm
  std::string wait_channel;  // process.h
};

// One line for people, without newline.
std::string describe(const Stuck& stuck);

// A process that outlived the worker that started it.
struct LeftBehind {
  pid_t pid = 0;
  std::string name;   // its command line, cut
  bool ended = true;  // it ended by itself after SIGTERM
};

// A process that ends within this time is not asked: it was about to.
inline constexpr std::chrono::milliseconds kEndsAlone{100};

// Sends SIGTERM to every descendant of this process that still lives after kEndsAlone. Waits up to
// `grace` for their ends. Reaps what ends. Returns those that were asked. Without descendants it
// costs one system call. Call it before end_descendants(), and under its conditions.
std::vector<LeftBehind> ask_descendants(std::chrono::milliseconds grace,
                                        const std::set<pid_t>& spared);

// One line for people, without newline. `left` must not be empty.
std::string describe(const std::vector<LeftBehind>& left);

// Sends SIGKILL to all descendants of this process and reaps them. Does so again until there are
// none or `limit` has passed. Returns those that are left. It takes the exit status of every
// child. Call it when no worker is alive, or when nobody will ask for a status any more. Children
// in `spared`, and all below them, live on: they were there before ddprun (`monitor & exec ddprun
// …`).
std::vector<Stuck> end_descendants(std::chrono::milliseconds limit = kSweepLimit,
                                   const std::set<pid_t>& spared = {});

// How long kill_descendants() waits.
inline constexpr std::chrono::milliseconds kKillDescendantsLimit{300};

// Sends SIGKILL to all descendants of another process, again and again until none lives or `limit`
// has passed. Returns how many lived. It reaps nothing. Call it while `root` is stopped: nobody
// reaps its children then, so no pid is given to another process.
std::size_t kill_descendants(pid_t root, std::chrono::milliseconds limit);

}  // namespace ddprun::agent
