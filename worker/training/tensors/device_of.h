// The device of a collective's memory, in LibTorch's words.
#pragma once

#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceType.h>
#include <ddprun/collective.h>

namespace ddprun::worker {

// A tensor that is made there lies on the current GPU, which is that of the collective. LibTorch
// may have another kind of device in the place of CUDA.
inline c10::DeviceType device_of(const Collective& collective) {
  return collective.device() == Device::kCuda ? at::getAccelerator().value_or(c10::kCUDA)
                                              : c10::kCPU;
}

}  // namespace ddprun::worker
