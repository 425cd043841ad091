#include "agent/worker_group/device_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace ddprun::agent {
namespace {

std::string list(const std::vector<DeviceHolder>& holders) {
  std::vector<std::string> texts;
  texts.reserve(holders.size());
  for (const DeviceHolder& holder : holders) texts.push_back(describe(holder));
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace

std::vector<DeviceHolder> in_the_way(const std::vector<DeviceHolder>& holders,
                                     const std::set<pid_t>& known,
                                     const std::set<std::string>& had) {
  std::vector<DeviceHolder> found;
  std::ranges::copy_if(holders, std::back_inserter(found), [&](const DeviceHolder& holder) {
    const bool had_it = std::ranges::any_of(
        holder.devices, [&had](const std::string& device) { return had.contains(device); });
    return holder.is_ours || (had_it && !known.contains(holder.pid));
  });
  return found;
}

DeviceGate::DeviceGate(asio::io_context& loop, std::string cookie, std::chrono::milliseconds limit,
                       Callbacks callbacks)
    : cookie_(std::move(cookie)),
      limit_(limit),
      callbacks_(std::move(callbacks)),
      is_open_(limit.count() == 0 || !has_device_files()),
      alarm_(loop, [this] { look(); }) {}

void DeviceGate::wait(const std::set<pid_t>& spared, std::function<void()> go) {
  if (is_open_) return go();
  if (!std::exchange(has_begun_, true)) {
    for (const DeviceHolder& holder : device_holders(cookie_, spared)) known_.insert(holder.pid);
    return go();
  }
  spared_ = spared;
  go_ = std::move(go);
  began_ = now();
  has_named_ = false;
  look();
}

void DeviceGate::forget() {
  go_ = nullptr;
  alarm_.set(Time::max());
}

void DeviceGate::note_devices() {
  if (is_open_) return;
  for (const DeviceHolder& holder : device_holders(cookie_, {}))
    if (holder.is_ours) had_.insert(holder.devices.begin(), holder.devices.end());
}

void DeviceGate::look() {
  if (!go_) return;
  const std::vector<DeviceHolder> holders =
      in_the_way(device_holders(cookie_, spared_), known_, had_);
  if (holders.empty()) return std::exchange(go_, nullptr)();
  for (const DeviceHolder& holder : holders)
    if (holder.is_ours) ::kill(holder.pid, SIGKILL);
  const auto waited = now() - began_;
  if (waited >= limit_) {
    forget();
    return callbacks_.refuse(fmt::format(
        "a device is not free {} s after the attempt before: {}; end that process (kill -9 {}), "
        "or start the job with --device-timeout=0, which does not look",
        std::chrono::duration_cast<std::chrono::seconds>(limit_).count(), list(holders),
        holders.front().pid));
  }
  if (waited >= kNamedAfter && !std::exchange(has_named_, true))
    callbacks_.say("the next attempt waits for a device: " + list(holders));
  alarm_.set(now() + kLookEvery);
}

}  // namespace ddprun::agent
