#include "agent/stragglers/host_load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct HostLoad : FolderTest {
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((folder / path).parent_path());
    std::ofstream(folder / path) << text;
  }
};

TEST_F(HostLoad, SharesAreOfTheTimeBetweenTwoLooks) {
  // user, nice, system, idle, iowait, irq, softirq, steal
  write("proc/stat", "cpu  100 0 50 1000 10 0 0 5 0 0\ncpu0 1 1 1 1 1 1 1 1\n");
  write("proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/a/b\n0::/\n");
  write("sys/fs/cgroup/cpu/a/b/cpu.stat", "nr_periods 50\nnr_throttled 3\nthrottled_time 1\n");
  write("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1200000\n");
  write("sys/devices/system/cpu/cpu0/cpufreq/base_frequency", "2400000\n");
  const HostLook first = look_at_host(seconds(1), Time(seconds(100)), folder);
  write("proc/stat", "cpu  500 0 150 1300 110 0 0 105 0 0\n");
  write("sys/fs/cgroup/cpu/a/b/cpu.stat", "nr_periods 150\nnr_throttled 13\nthrottled_time 2\n");
  const HostLook second = look_at_host(seconds(3), Time(seconds(110)), folder);
  // 400 of 1,000 ticks were idle, 100 stolen, and 200 the workers'.
  const auto ticks = ::sysconf(_SC_CLK_TCK);
  ASSERT_EQ(ticks, 100);
  EXPECT_EQ(
      host_between(first, second),
      (rendezvous::HostSample{.stolen = 100, .throttled = 100, .others = 300, .frequency = 500}));
}

TEST_F(HostLoad, AKernelThatTellsNothingGivesZeros) {
  const HostLook look = look_at_host(seconds(1), Time(seconds(1)), folder);
  EXPECT_EQ(host_between(look, look), rendezvous::HostSample{});
  EXPECT_EQ(parse_cpu_ticks("cpu 1 x").all, 1);
  EXPECT_EQ(parse_cpu_ticks("intr 1 2 3").all, 0);
}

TEST_F(HostLoad, PeriodsAreThoseOfEitherVersion) {
  const QuotaPeriods of_v2 = parse_quota_periods("usage_usec 7\nnr_periods 9\nnr_throttled 4\n");
  EXPECT_EQ(of_v2.all, 9);
  EXPECT_EQ(of_v2.throttled, 4);
  EXPECT_EQ(parse_quota_periods("nr_periods 9\n").all, 9);
  EXPECT_EQ(parse_quota_periods("").throttled, 0);
}

TEST_F(HostLoad, ThisHostHasCpus) { EXPECT_GT(look_at_host(milliseconds(0), Time{}).ticks.all, 0); }

}  // namespace
}  // namespace ddprun::agent
