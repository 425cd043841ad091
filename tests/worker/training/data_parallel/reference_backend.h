// PyTorch's own gradient reducer (c10d::Reducer of the wheel), driven as by Python's
// DistributedDataParallel. A small c10d::Backend under it sums through our collective. The peer
// that our engine is compared with, bit for bit, in one process.
#pragma once

#include <ddprun/collective.h>

#include <cstring>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>
#include <vector>

#include "worker/training/tensors/summable.h"

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
    if (tensors[0].is_sparse()) return sum_of_sparse(tensors);
    for (at::Tensor& tensor : tensors) {
      TORCH_CHECK(tensor.is_contiguous());
      if (tensor.numel() == 0) continue;
      std::memcpy(memory_.get(), tensor.data_ptr(), tensor.nbytes());
      const Dtype dtype =
          tensor.scalar_type() == at::kInt ? Dtype::kInt32 : summable(tensor.scalar_type()).value();
      const Flat flat{memory_.get(), tensor.nbytes() / size_of(dtype), dtype};
      collective_.wait(collective_.launch_sum(flat));
      std::memcpy(tensor.data_ptr(), memory_.get(), tensor.nbytes());
    }
    return c10::make_intrusive<DoneWork>(tensors);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    for (at::Tensor& tensor : tensors) {
      TORCH_CHECK(tensor.is_contiguous());
      collective_.broadcast({tensor.data_ptr(), tensor.nbytes(), Dtype::kUInt8},
                            static_cast<int>(options.rootRank));
    }
    return c10::make_intrusive<DoneWork>(tensors);
  }

 private:
  // As ProcessGroupGloo.cpp (AsyncSparseAllreduceWork): indices and values of all ranks, added in
  // rank order. Written apart from ours: dense tensors travel here, and few of them.
  c10::intrusive_ptr<c10d::Work> sum_of_sparse(std::vector<at::Tensor>& tensors) {
    const at::Tensor input = tensors[0].coalesce();
    const auto indices = gather(input.indices().t().contiguous());
    const auto values = gather(input.values().contiguous());
    at::Tensor output;
    for (std::size_t rank = 0; rank < indices.size(); ++rank) {
      const at::Tensor theirs =
          at::sparse_coo_tensor(indices[rank].t(), values[rank], input.sizes());
      if (rank == 0)
        output = theirs;
      else
        output += theirs;
    }
    tensors[0] = output.coalesce();
    return c10::make_intrusive<DoneWork>(tensors);
  }

  // Rows of all ranks, by rank.
  std::vector<at::Tensor> gather(const at::Tensor& mine) {
    const auto blobs = collective_.all_gather_bytes(
        {static_cast<const std::byte*>(mine.data_ptr()), mine.nbytes()});
    std::int64_t row_bytes = mine.element_size();
    for (std::int64_t dim = 1; dim < mine.dim(); ++dim) row_bytes *= mine.size(dim);
    std::vector<at::Tensor> tensors;
    for (const auto& blob : blobs) {
      auto sizes = mine.sizes().vec();
      sizes[0] = static_cast<std::int64_t>(blob.size()) / row_bytes;
      tensors.push_back(at::empty(sizes, mine.options()));
      if (!blob.empty()) std::memcpy(tensors.back().data_ptr(), blob.data(), blob.size());
    }
    return tensors;
  }

  Collective& collective_;
  std::shared_ptr<std::byte> memory_;
};

struct ReferenceOptions {
  std::int64_t bucket_cap_bytes = 0;
  std::int64_t first_bucket_bytes = 0;
  std::vector<std::int64_t> bucket_cap_bytes_list;
  bool gradient_as_bucket_view = true;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool skip_all_reduce_unused_params = false;
  std::vector<bool> sparse;  // by parameter; none: no one is
};

inline c10::intrusive_ptr<c10d::ProcessGroup> reference_group(Collective& collective,
                                                              std::size_t bytes_max) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(collective.rank(), collective.world_size());
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<ReferenceBackend>(collective, bytes_max));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return group;
}

// The limits of the first buckets, as torch/nn/parallel/distributed.py (2.11), _ddp_init_helper.
inline std::vector<std::size_t> first_limits(const ReferenceOptions& options) {
  const auto& list = options.bucket_cap_bytes_list;
  if (!list.empty()) return {list.begin(), list.end()};
  if (options.static_graph || !options.find_unused_parameters)
    return {std::numeric_limits<std::size_t>::max()};
  return {static_cast<std::size_t>(options.first_bucket_bytes),
          static_cast<std::size_t>(options.bucket_cap_bytes)};
}

// As _ddp_init_helper there makes it: the list of first buckets is reversed.
inline std::unique_ptr<c10d::Reducer> make_reference(std::vector<at::Tensor> parameters,
                                                     Collective& collective,
                                                     const ReferenceOptions& options) {
  std::size_t bytes = 0;
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    bytes +=
        parameters[i].nbytes() + sizeof(std::int32_t);  // and its place in the map of used ones
    names[i] = "parameter " + std::to_string(i);
  }
  std::vector<bool> sparse = options.sparse;
  sparse.resize(parameters.size(), false);
  auto buckets = std::get<0>(
      c10d::compute_bucket_assignment_by_size(parameters, first_limits(options), sparse));
  std::reverse(buckets.begin(), buckets.end());
  auto reducer = std::make_unique<c10d::Reducer>(
      std::move(parameters), std::move(buckets), reference_group(collective, bytes), sparse,
      options.bucket_cap_bytes, options.find_unused_parameters, options.gradient_as_bucket_view,
      std::move(names), options.first_bucket_bytes, options.skip_all_reduce_unused_params,
      /*use_python_reducer=*/false, options.bucket_cap_bytes_list);
  if (options.static_graph) reducer->set_static_graph();
  return reducer;
}

}  // namespace ddprun::worker
