// While it lives, operations of this thread that gain from 16 bits compute in them. Those that need
// float32 keep it. It is Python's torch.autocast (torch 2.11, torch/amp/autocast_mode.py).
// Parameters and gradients stay float32, so DataParallel needs nothing else.
//
//   at::Tensor loss;
//   {
//     const Autocast autocast(at::kCPU);
//     loss = torch::nll_loss(parallel.forward(net, images), labels);
//   }
//   loss.backward();
//
// Use it on the thread that made it. Several may be nested; the inner one counts.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace ddprun::worker {

class Autocast {
 public:
  // `dtype`: at::kBFloat16 or at::kHalf; throws std::invalid_argument for another one. `enabled` =
  // false: the part inside computes as without any.
  explicit Autocast(c10::DeviceType device, c10::ScalarType dtype = c10::ScalarType::BFloat16,
                    bool enabled = true);
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  Autocast(Autocast&&) = delete;
  Autocast& operator=(Autocast&&) = delete;
  // The weights that were cast are let go with the outermost one.
  ~Autocast();

 private:
  c10::DeviceType device_;
  bool was_enabled_;
  c10::ScalarType dtype_before_;
};

}  // namespace ddprun::worker
