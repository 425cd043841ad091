#include "agent/worker_group/device_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/processes/process.h"

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
                                     const std::set<std::uint64_t>& had) {
  std::vector<DeviceHolder> found;
  std::ranges::copy_if(holders, std::back_inserter(found), [&](const DeviceHolder& holder) {
    const bool had_it = std::ranges::any_of(
        holder.devices, [&had](const auto& device) { return had.contains(device.second); });
    return (holder.is_ours || had_it) && !known.contains(holder.pid);
  });
  return found;
}

DeviceHost this_host() {
  return {has_device_files() && proc_is_ours(), device_holders, still_holds, devices_below};
}

DeviceGate::DeviceGate(asio::io_context& loop, std::chrono::milliseconds limit, bool ends_job,
                       Callbacks callbacks, DeviceHost host)
    : limit_(limit),
      ends_job_(ends_job),
      callbacks_(std::move(callbacks)),
      host_(std::move(host)),
      is_open_(limit.count() == 0 || !host_.can_look),
      alarm_(loop, [this] { go_ ? look() : note_devices(); }) {}

void DeviceGate::wait(const std::set<pid_t>& spared, std::function<void()> go) {
  if (is_open_) return go();
  const std::vector<DeviceHolder> holders = host_.holders(spared);
  if (!std::exchange(has_begun_, true)) {
    for (const DeviceHolder& holder : holders) known_.insert(holder.pid);
    return begin(go);
  }
  found_ = in_the_way(holders, known_, had_);
  go_ = std::move(go);
  began_ = now();
  has_named_ = false;
  for (const DeviceHolder& holder : found_)
    if (holder.is_ours) kill_holder(holder);
  look();
}

void DeviceGate::forget() {
  go_ = nullptr;
  alarm_.set(Time::max());
}

void DeviceGate::begin(const std::function<void()>& go) {
  next_note_ = kFirstNote;
  alarm_.set(now() + next_note_);
  go();
}

void DeviceGate::note_devices() {
  if (is_open_ || go_) return;
  for (const auto& [path, number] : host_.devices_below()) had_.insert(number);
  next_note_ *= 2;
  alarm_.set(now() + next_note_);
}

void DeviceGate::look() {
  std::erase_if(found_, [this](const DeviceHolder& holder) { return !host_.still_holds(holder); });
  if (found_.empty()) return begin(std::exchange(go_, nullptr));
  const auto waited = now() - began_;
  if (waited >= limit_) return give_up();
  if (waited >= kNamedAfter && !std::exchange(has_named_, true))
    callbacks_.say("the next attempt waits for a device: " + list(found_));
  alarm_.set(now() + kLookEvery);
}

// A holder that was named once is not waited for again.
void DeviceGate::give_up() {
  const std::string why =
      fmt::format("a device is not free {} s after the attempt before: {}",
                  std::chrono::duration_cast<std::chrono::seconds>(limit_).count(), list(found_));
  auto go = std::exchange(go_, nullptr);
  if (ends_job_) {
    forget();
    return callbacks_.refuse(fmt::format(
        "{}; end that process (kill -9 {}), or start the job without --device-timeout, which then "
        "goes on",
        why, found_.front().pid));
  }
  for (const DeviceHolder& holder : found_) known_.insert(holder.pid);
  callbacks_.say(why + "; the next attempt begins all the same");
  begin(go);
}

}  // namespace ddprun::agent
