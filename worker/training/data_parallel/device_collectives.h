// The collectives of a model whose parts lie on several GPUs of one process: each GPU has one. On
// one GPU, and on the CPU, it is the program's own collective. PyTorch's DistributedDataParallel
// without device_ids has a communicator of NCCL for each GPU, too. GradientReducer owns it.
#pragma once

#include <c10/core/Device.h>
#include <ddprun/collective.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "worker/training/data_parallel/module_state.h"

namespace ddprun::worker {

class DeviceCollectives {
 public:
  // All ranks must call it, with parameters that are divided in the same way. Makes a collective
  // for each GPU that is not the one of `collective`. Both must outlive this.
  DeviceCollectives(std::span<const NamedTensor> parameters, Collective& collective);

  // Devices of the model.
  std::size_t count() const { return devices_.size(); }
  // By the device's place (ParameterSize).
  Collective& at(std::size_t place) const { return *collectives_.at(place); }
  const std::vector<c10::Device>& devices() const { return devices_; }

  // Each of these is the collective's, on all devices.
  void progress() const;
  void check() const;
  void reset() const;

 private:
  std::vector<c10::Device> devices_;
  std::vector<std::unique_ptr<Collective>> made_;
  std::vector<Collective*> collectives_;  // by place
};

}  // namespace ddprun::worker
