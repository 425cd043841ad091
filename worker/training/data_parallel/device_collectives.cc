#include "worker/training/data_parallel/device_collectives.h"

namespace ddprun::worker {

DeviceCollectives::DeviceCollectives(std::span<const NamedTensor> parameters,
                                     Collective& collective)
    : devices_(devices_of(parameters)) {
  for (const c10::Device device : devices_) {
    const bool is_own = device.is_cpu() || device.index() == collective.gpu();
    if (!is_own) made_.push_back(collective.on_gpu(device.index()));
    collectives_.push_back(is_own ? &collective : made_.back().get());
  }
}

void DeviceCollectives::progress() const {
  for (Collective* each : collectives_) each->progress();
}

void DeviceCollectives::check() const {
  for (Collective* each : collectives_) each->check();
}

void DeviceCollectives::reset() const {
  for (Collective* each : collectives_) each->reset();
}

}  // namespace ddprun::worker
