// Files of accelerators and who holds them. A stand-in device needs a /dev of its own: see
// tests/jobs/attempts_test.py.
#include "agent/processes/device_holders.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "agent/processes/process.h"

namespace ddprun::agent {
namespace {

TEST(DeviceFiles, AreThoseOfOneAccelerator) {
  for (const char* device : {"/dev/nvidia0", "/dev/nvidia15", "/dev/dri/renderD128"})
    EXPECT_TRUE(is_device_file(device)) << device;
  for (const char* other : {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/kfd", "/dev/nvidia",
                            "/dev/nvidia0x", "/dev/dri/card0", "/dev/null", "/tmp/dev/nvidia0", ""})
    EXPECT_FALSE(is_device_file(other)) << other;
}

TEST(DeviceHolder, IsDescribedWithUserCommandAndDevices) {
  const DeviceHolder holder{.pid = 7,
                            .devices = {{"/dev/nvidia1", 1}, {"/dev/nvidia0", 0}},
                            .user = 0,
                            .command = "python train.py"};
  EXPECT_EQ(describe(holder),
            "pid 7 of user root (python train.py) holds /dev/nvidia0, /dev/nvidia1");
  EXPECT_EQ(
      describe({.pid = 7, .devices = {{"/dev/nvidia2", 2}}, .user = 4'000'000'000, .command = "x"}),
      "pid 7 of user 4000000000 (x) holds /dev/nvidia2");
}

TEST(DeviceHolder, IsKilledOnlyIfThePidIsStillThatProcess) {
  const pid_t pid = ::fork();
  if (pid == 0)
    while (true) ::pause();
  const auto stat = read_process_stat(pid);
  ASSERT_TRUE(stat);
  EXPECT_FALSE(kill_holder({.pid = pid, .started = stat->started - 1}));
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), 0);
  EXPECT_TRUE(kill_holder({.pid = pid, .started = stat->started}));
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

}  // namespace
}  // namespace ddprun::agent
