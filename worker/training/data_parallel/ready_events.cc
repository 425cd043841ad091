#include "worker/training/data_parallel/ready_events.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddprun::worker {
namespace {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

void ReadyEvents::filled(std::size_t bucket, std::size_t device) {
  if (devices_.size() == 1) return;
  const c10::Device here = devices_.at(device);
  const auto [event, is_new] = events_.try_emplace(bucket, here.type());
  // A rebuilt bucket may lie on another device than its namesake before, and so must its event.
  if (!is_new && event->second.device_index() != here.index())
    event->second = c10::Event(here.type());
  event->second.record(current_stream(here));
}

void ReadyEvents::hold(std::size_t bucket, std::size_t device) {
  const auto event = events_.find(bucket);
  if (event != events_.end()) event->second.block(current_stream(devices_.at(device)));
}

}  // namespace ddprun::worker
