// PyTorch's own gradient reducer (c10d::Reducer of the wheel), driven as Python's
// DistributedDataParallel drives it, over a small c10d::Backend that sums through our collective.
// The peer that our engine is compared with, bit for bit, in one process.
#pragma once

#include <cstring>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>
#include <vector>

#include "worker/collective/collective.h"
#include "worker/reducer/module_state.h"

namespace ddprun::worker {

// An operation that was complete when it was made.
class DoneWork final : public c10d::Work {
 public:
  explicit DoneWork(const std::vector<at::Tensor>& tensors)
      : future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {
    future_->markCompleted(c10::IValue(tensors));
  }
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class ReferenceBackend final : public c10d::Backend {
 public:
  // `bytes_max`: the largest bucket that will be summed.
  ReferenceBackend(Collective& collective, std::size_t bytes_max)
      : c10d::Backend(collective.rank(), collective.world_size()),
        collective_(collective),
        memory_(collective.allocate(bytes_max)) {}

  const std::string getBackendName() const override { return "reference"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& /*options*/) override {
    for (at::Tensor& tensor : tensors) {
      TORCH_CHECK(tensor.is_contiguous());
      std::memcpy(memory_.get(), tensor.data_ptr(), tensor.nbytes());
      const Flat flat{memory_.get(), static_cast<std::size_t>(tensor.numel()),
                      summable(tensor.scalar_type()).value()};
      collective_.wait(collective_.launch_sum(flat));
      std::memcpy(tensor.data_ptr(), memory_.get(), tensor.nbytes());
    }
    return c10::make_intrusive<DoneWork>(tensors);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    for (at::Tensor& tensor : tensors) {
      TORCH_CHECK(tensor.is_contiguous());
      collective_.broadcast({tensor.data_ptr(), tensor.nbytes(), Dtype::kByte},
                            static_cast<int>(options.rootRank));
    }
    return c10::make_intrusive<DoneWork>(tensors);
  }

 private:
  Collective& collective_;
  std::shared_ptr<std::byte> memory_;
};

struct ReferenceOptions {
  std::int64_t bucket_cap_bytes = 0;
  std::int64_t first_bucket_bytes = 0;
  bool gradient_as_bucket_view = true;
};

inline c10::intrusive_ptr<c10d::ProcessGroup> reference_group(Collective& collective,
                                                              std::size_t bytes_max) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(collective.rank(), collective.world_size());
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<ReferenceBackend>(collective, bytes_max));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return group;
}

// As torch/nn/parallel/distributed.py (2.11) _ddp_init_helper makes it for
// find_unused_parameters=False: one unlimited bucket per dtype at first, the list reversed.
inline std::unique_ptr<c10d::Reducer> make_reference(std::vector<at::Tensor> parameters,
                                                     Collective& collective,
                                                     const ReferenceOptions& options) {
  std::size_t bytes = 0;
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    bytes += parameters[i].nbytes();
    names[i] = "parameter " + std::to_string(i);
  }
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
      parameters, {std::numeric_limits<std::size_t>::max()}));
  std::reverse(buckets.begin(), buckets.end());
  const std::vector<bool> sparse(parameters.size(), false);
  return std::make_unique<c10d::Reducer>(
      std::move(parameters), std::move(buckets), reference_group(collective, bytes), sparse,
      options.bucket_cap_bytes, /*find_unused_parameters=*/false, options.gradient_as_bucket_view,
      std::move(names), options.first_bucket_bytes, /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, std::vector<std::int64_t>{});
}

}  // namespace ddprun::worker
