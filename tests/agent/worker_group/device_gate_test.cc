// The holders of devices for which an attempt waits.
#include "agent/worker_group/device_gate.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

TEST(InTheWay, AreOursAndThoseThatHaveComeForADeviceOfOurs) {
  const DeviceHolder ours{.pid = 1, .devices = {"/dev/nvidia3"}, .is_ours = true};
  const DeviceHolder before{.pid = 2, .devices = {"/dev/nvidia0"}};
  const DeviceHolder taker{.pid = 3, .devices = {"/dev/nvidia0", "/dev/nvidia1"}};
  const DeviceHolder neighbour{.pid = 4, .devices = {"/dev/nvidia7"}};
  EXPECT_EQ(in_the_way({ours, before, taker, neighbour}, {2}, {"/dev/nvidia0"}),
            (std::vector{ours, taker}));
  EXPECT_EQ(in_the_way({before, taker, neighbour}, {}, {}), (std::vector<DeviceHolder>{}));
}

}  // namespace
}  // namespace ddprun::agent
