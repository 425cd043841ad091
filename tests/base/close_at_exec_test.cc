// Descriptors and an exec. tests/old_kernel runs this without close_range, too.
#include "base/close_at_exec.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "base/new_calls.h"

namespace ddprun {
namespace {

bool is_closed_at_exec(int fd) { return (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0; }

TEST(CloseAtExec, MarksEachFromTheFirstOnAndClosesNone) {
  has_call(NewCall::kCloseRange);
  std::vector<int> opened;
  // More than one read of the list gives.
  for (int i = 0; i < 300; ++i) opened.push_back(::open("/dev/null", O_RDONLY));
  const int high = ::fcntl(opened[0], F_DUPFD, 900);
  ASSERT_GE(high, 900);
  const pid_t child = ::fork();  // the marks are the child's alone
  if (child == 0) {
    close_at_exec(opened[1]);
    int wrong = is_closed_at_exec(opened[0]) || is_closed_at_exec(STDERR_FILENO) ? 1 : 0;
    for (std::size_t i = 1; i < opened.size(); ++i) wrong += is_closed_at_exec(opened[i]) ? 0 : 1;
    wrong += is_closed_at_exec(high) ? 0 : 1;
    ::_exit(wrong == 0 && ::fcntl(high, F_GETFD) >= 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const int fd : opened) ::close(fd);
  ::close(high);
}

}  // namespace
}  // namespace ddprun
