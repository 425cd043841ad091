// The device of a collective's memory, in LibTorch's words.
#pragma once

#include <c10/core/DeviceType.h>
#include <ddprun/collective.h>

namespace ddprun::worker {

// A tensor that is made there lies on the current GPU, which is that of the collective.
inline c10::DeviceType device_of(const Collective& collective) {
  return collective.device() == Device::kCuda ? c10::kCUDA : c10::kCPU;
}

}  // namespace ddprun::worker
