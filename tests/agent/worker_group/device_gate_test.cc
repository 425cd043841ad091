// The holders of devices for which an attempt waits.
#include "agent/worker_group/device_gate.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace ddprun::agent {
namespace {

TEST(InTheWay, AreOursAndThoseThatHaveComeForADeviceOfOurs) {
  const DeviceHolder ours{.pid = 1, .devices = {{"/dev/nvidia3", 3}}, .is_ours = true};
  const DeviceHolder before{.pid = 2, .devices = {{"/dev/nvidia0", 10}}};
  const DeviceHolder taker{.pid = 3, .devices = {{"/dev/nvidia0", 10}, {"/dev/nvidia1", 11}}};
  const DeviceHolder neighbour{.pid = 4, .devices = {{"/dev/nvidia7", 17}}};
  EXPECT_EQ(in_the_way({ours, before, taker, neighbour}, {2}, {10}), (std::vector{ours, taker}));
  EXPECT_EQ(in_the_way({ours, before}, {1, 2}, {10}), (std::vector<DeviceHolder>{}));
  EXPECT_EQ(in_the_way({before, taker, neighbour}, {}, {}), (std::vector<DeviceHolder>{}));
}

TEST(InTheWay, IsNoHolderOfAnotherDeviceWithTheSamePath) {
  const DeviceHolder in_a_container{.pid = 1, .devices = {{"/dev/nvidia0", 13}}};
  EXPECT_EQ(in_the_way({in_a_container}, {}, {10}), (std::vector<DeviceHolder>{}));
}

// A host with one device. Another process takes it while the first attempt runs, and keeps it.
class DeviceGateTest : public testing::Test {
 protected:
  DeviceHost host() {
    return {.can_look = true,
            .holders =
                [this](const std::set<pid_t>& spared) {
                  ++scans_;
                  EXPECT_TRUE(spared.contains(7));
                  return has_begun_ ? std::vector{other_} : std::vector<DeviceHolder>{};
                },
            .still_holds = [this](const DeviceHolder& holder) { return holder == other_; },
            .devices_below =
                [] {
                  return Devices{{"/dev/nvidia0", 10}};
                }};
  }

  // The first attempt begins and ends, and the gate is asked for the second one.
  void ask(DeviceGate& gate) {
    gate.wait({7}, [this] { has_begun_ = true; });
    ASSERT_TRUE(has_begun_);
    gate.note_devices();
    gate.wait({7}, [this] { is_second_ = true; });
    EXPECT_FALSE(is_second_);
    while (!is_second_ && !refused_) loop_.run_one();
  }

  // No process has this pid. A gate that sends it a signal does no harm.
  const DeviceHolder other_{
      .pid = 0x3FFFFFFF, .devices = {{"/dev/nvidia0", 10}}, .command = "serve"};
  asio::io_context loop_;
  bool has_begun_ = false;
  bool is_second_ = false;
  int scans_ = 0;
  std::string said_;
  std::optional<std::string> refused_;
  DeviceGate::Callbacks callbacks_{[this](const std::string& line) { said_ = line; },
                                   [this](const std::string& why) { refused_ = why; }};
};

TEST_F(DeviceGateTest, LetsTheAttemptBeginAfterTheLimitAndNamesTheHolderOnce) {
  DeviceGate gate(loop_, std::chrono::milliseconds(120), false, callbacks_, host());
  ask(gate);
  EXPECT_TRUE(is_second_);
  EXPECT_NE(said_.find("pid 1073741823 of user root (serve) holds /dev/nvidia0; the next attempt "
                       "begins all the same"),
            std::string::npos)
      << said_;
  EXPECT_EQ(scans_, 2) << "only who was found is looked at again";
  bool is_third = false;
  gate.wait({7}, [&] { is_third = true; });
  EXPECT_TRUE(is_third);
}

TEST_F(DeviceGateTest, EndsTheJobAfterALimitOfTheUser) {
  DeviceGate gate(loop_, std::chrono::milliseconds(120), true, callbacks_, host());
  ask(gate);
  EXPECT_FALSE(is_second_);
  EXPECT_NE(refused_.value_or("").find("(serve) holds /dev/nvidia0; end that process"),
            std::string::npos);
}

TEST_F(DeviceGateTest, NotesTheDevicesOfWorkersThatRun) {
  DeviceGate gate(loop_, std::chrono::milliseconds(120), true, callbacks_, host());
  gate.wait({7}, [this] { has_begun_ = true; });
  loop_.run_one();
  gate.wait({7}, [this] { is_second_ = true; });
  EXPECT_FALSE(is_second_);
}

}  // namespace
}  // namespace ddprun::agent
