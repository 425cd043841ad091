// The deaths of our children in their order, where the kernel has no pidfds (base/new_calls.h). A
// handler of SIGCHLD writes each down at once, however busy the loop is. The kernel keeps one
// SIGCHLD at a time. So of several deaths before the handler runs, only the first is told. A
// handler has no owner, so this is one for the process. One thread calls these functions.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <vector>

namespace ddprun::agent {

// Writes deaths down from now on. The handler that was there is called as before. May be called
// again: another handler may have taken its place.
void record_child_deaths();

// Returns the children that have died since the last call, as far as they were told. Some may have
// been reaped.
std::vector<pid_t> take_child_deaths();

// Waits until a child has died since the last call, `until` at the latest. Records deaths from then
// on. Deaths stay for take_child_deaths(). SIGCHLD may be blocked.
void wait_for_child_death(std::chrono::steady_clock::time_point until);

// `dead`: workers, each of which leads a session. `told`: take_child_deaths(). Puts those that were
// told in front, in that order. A child that is no worker speaks for the worker of its session
// (getsid(2)). The kernel tells of a worker's dead children just before it tells of the worker.
void sort_by_deaths(std::vector<pid_t>& dead, const std::vector<pid_t>& told);

}  // namespace ddprun::agent
