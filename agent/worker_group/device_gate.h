// Lets an attempt begin when the accelerators are free. A process of the attempt before may still
// hold one. A new worker would find too little memory, or the device taken. Ours are killed.
// Another process that has come since the job began is named, and in the end the attempt is
// refused. The kernel tells nobody that a file was closed. So the gate looks again and again, but
// only while somebody holds one. Loop's thread; owned by Agent.
#pragma once

#include <sys/types.h>

#include <chrono>
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
// `had`, which our workers had. `known` held one before the job began, and does not count. Pure.
std::vector<DeviceHolder> in_the_way(const std::vector<DeviceHolder>& holders,
                                     const std::set<pid_t>& known,
                                     const std::set<std::string>& had);

class DeviceGate {
 public:
  // A holder of a device is named after so long.
  static constexpr std::chrono::seconds kNamedAfter{2};
  static constexpr std::chrono::milliseconds kLookEvery{50};

  struct Callbacks {
    std::function<void(const std::string& line)> say;
    std::function<void(const std::string& why)> refuse;  // the limit is over
  };
  // `cookie`: of this job. `limit`: how long an attempt waits; 0: there is no gate.
  DeviceGate(asio::io_context& loop, std::string cookie, std::chrono::milliseconds limit,
             Callbacks callbacks);
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
  // The workers are about to end: notes which devices they have.
  void note_devices();

 private:
  void look();

  const std::string cookie_;
  const std::chrono::milliseconds limit_;
  const Callbacks callbacks_;
  const bool is_open_;  // nothing to look at
  std::set<pid_t> known_;
  std::set<std::string> had_;
  bool has_begun_ = false;
  std::set<pid_t> spared_;
  std::function<void()> go_;
  Time began_{};
  bool has_named_ = false;
  Alarm alarm_;
};

}  // namespace ddprun::agent
