#include "base/new_calls.h"

#include <linux/close_range.h>
#include <linux/sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bitset>
#include <cerrno>
#include <cstddef>

namespace ddprun {
namespace {

// Debian 12's headers of libc do not name it.
constexpr long kFutexWaitvNumber = 449;
constexpr int kNoDescriptor = 0x7ffffffe;

int error_of(long answer) { return answer < 0 ? errno : 0; }

int try_pidfd_open() {
  const long process = ::syscall(SYS_pidfd_open, ::getpid(), 0);
  const int error = error_of(process);
  if (error == 0) ::close(static_cast<int>(process));
  return error;
}

// There is no such cgroup, so no process is made. A kernel that does not look at the cgroup makes
// one, which tells nobody of its end.
int try_clone_into_cgroup() {
  clone_args args{};
  args.flags = CLONE_INTO_CGROUP;
  args.cgroup = kNoDescriptor;
  const long process = ::syscall(SYS_clone3, &args, sizeof(args));
  if (process == 0) ::_exit(0);
  const int error = error_of(process);
  if (process > 0) ::waitpid(static_cast<pid_t>(process), nullptr, __WALL);
  return error;
}

std::bitset<kNewCallCount> try_all() {
  std::bitset<kNewCallCount> found;
  for (std::size_t i = 0; i < kNewCallCount; ++i)
    found[i] = is_there(kNewCalls[i].call, try_call(kNewCalls[i].call));
  return found;
}

}  // namespace

const std::array<NewCallRow, kNewCallCount> kNewCalls = {{
    {NewCall::kPidfdSendSignal, "pidfd_send_signal", "5.1", EBADF,
     "a process that an earlier job left is ended by its number, right after a last look at it"},
    {NewCall::kPidfdOpen, "pidfd_open", "5.3", 0,
     "of three and more workers that die in one moment, only the first is certain"},
    {NewCall::kClone3, "clone3 with CLONE_INTO_CGROUP", "5.7", EBADF,
     "a start takes some 20 ms longer if the job has a cgroup"},
    {NewCall::kCloseRange, "close_range with CLOSE_RANGE_CLOEXEC", "5.11", 0,
     "nothing is lost: descriptors are kept from workers one by one"},
    {NewCall::kFutexWaitv, "futex_waitv", "5.16", EINVAL,
     "a worker's death is noticed after the kernel has freed its memory, 0.1 s and more later"},
}};

bool is_there(NewCall call, int error) {
  return error == kNewCalls[static_cast<std::size_t>(call)].probe_errno;
}

int try_call(NewCall call) {
  switch (call) {
    case NewCall::kPidfdSendSignal:
      return error_of(::syscall(SYS_pidfd_send_signal, -1, 0, nullptr, 0));
    case NewCall::kPidfdOpen:
      return try_pidfd_open();
    case NewCall::kClone3:
      return try_clone_into_cgroup();
    case NewCall::kCloseRange:
      return error_of(::syscall(SYS_close_range, ~0U, ~0U, CLOSE_RANGE_CLOEXEC));
    case NewCall::kFutexWaitv:
      return error_of(::syscall(kFutexWaitvNumber, nullptr, 0, 0, nullptr, 0));
  }
  return ENOSYS;
}

bool has_call(NewCall call) {
  // The kernel answers alike for as long as the process lives.
  static const std::bitset<kNewCallCount> found = try_all();
  return found[static_cast<std::size_t>(call)];
}

}  // namespace ddprun
