// Lets an attempt begin when the accelerators are free. A process of the attempt before may still
// hold one. A new worker would find too little memory, or the device taken. Processes below the
// agent are killed. Another one that has come since the job began is named. After the limit the
// attempt begins all the same, as torchrun's would. If the user gave the limit, the job ends.
// The kernel tells nobody that a file was closed. So the gate looks again and again, but only while
// somebody holds one. Loop's thread; owned by Agent.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "agent/core/clock.h"
#include "agent/processes/device_holders.h"
#include "base/alarm.h"
#include "base/loop.h"

namespace ddprun::agent {

// Returns the holders for which an attempt waits. They are ours, and others that hold a device of
// `had`: the numbers of those that our workers had. Processes in `known` do not count. Pure.
std::vector<DeviceHolder> in_the_way(const std::vector<DeviceHolder>& holders,
                                     const std::set<pid_t>& known,
                                     const std::set<std::uint64_t>& had);

// The devices of this host and their holders (agent/processes/device_holders.h). Tests give others.
struct DeviceHost {
  bool can_look = false;
  std::function<std::vector<DeviceHolder>(const std::set<pid_t>& spared)> holders{};
  std::function<bool(const DeviceHolder&)> still_holds{};
  std::function<Devices()> devices_below{};
};
DeviceHost this_host();

class DeviceGate {
 public:
  // A holder of a device is named after so long.
  static constexpr std::chrono::seconds kNamedAfter{2};
  static constexpr std::chrono::milliseconds kLookEvery{50};
  // The workers' devices are noted so long after their start, and then after twice as long again.
  static constexpr std::chrono::seconds kFirstNote{1};

  struct Callbacks {
    std::function<void(const std::string& line)> say;
    std::function<void(const std::string& why)> refuse;  // the limit is over
  };
  // `limit`: how long an attempt waits; 0: there is no gate. `ends_job`: an attempt that has waited
  // so long is refused. Otherwise it begins.
  DeviceGate(asio::io_context& loop, std::chrono::milliseconds limit, bool ends_job,
             Callbacks callbacks, DeviceHost host = this_host());
  DeviceGate(const DeviceGate&) = delete;
  DeviceGate& operator=(const DeviceGate&) = delete;
  DeviceGate(DeviceGate&&) = delete;
  DeviceGate& operator=(DeviceGate&&) = delete;
  ~DeviceGate() = default;

  // Calls `go` when no process is in the way: at once if none is. The first call never waits.
  // `spared`: processes of the coming attempt, such as standbys.
  void wait(const std::set<pid_t>& spared, std::function<void()> go);
  // The attempt does not begin.
  void forget();
  // Notes which devices the workers have. The gate does so by itself while they run; call it when
  // they are about to end.
  void note_devices();

 private:
  void look();
  void give_up();
  void begin(const std::function<void()>& go);

  const std::chrono::milliseconds limit_;
  const bool ends_job_;
  const Callbacks callbacks_;
  const DeviceHost host_;
  const bool is_open_;  // nothing to look at
  std::set<pid_t> known_;
  std::set<std::uint64_t> had_;
  bool has_begun_ = false;
  std::vector<DeviceHolder> found_;  // in the way
  std::function<void()> go_;
  Time began_{};
  std::chrono::seconds next_note_{};
  bool has_named_ = false;
  Alarm alarm_;
};

}  // namespace ddprun::agent
