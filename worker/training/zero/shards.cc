#include "worker/training/zero/shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>
#include <ddprun/metrics.h>
#include <ddprun/tensor_collective.h>
#include <fmt/format.h>
#include <torch/serialize.h>

#include <cstring>
#include <sstream>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include "base/hash.h"
#include "worker/collective/core/shared_buffer.h"
#include "worker/training/tensors/bucket_name.h"
#include "worker/training/tensors/device_of.h"
#include "worker/training/tensors/summable.h"
#include "worker/training/tensors/wrapped_number.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t kAlignBytes = 64;

std::vector<std::vector<std::int64_t>> counts_of(
    const std::vector<std::vector<at::Tensor>>& groups) {
  std::vector<std::vector<std::int64_t>> counts;
  for (const auto& group : groups) {
    counts.emplace_back();
    for (const at::Tensor& parameter : group) counts.back().push_back(parameter.numel());
  }
  return counts;
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

// With the parameter's own strides, if these leave no gaps.
at::Tensor place_for(const at::Tensor& parameter, std::byte* data,
                     const std::shared_ptr<std::byte>& memory) {
  const auto keep_alive = [memory](void* /*tensor*/) {};
  const auto options = parameter.options().requires_grad(false);
  if (parameter.is_non_overlapping_and_dense())
    return at::from_blob(data, parameter.sizes(), parameter.strides(), keep_alive, options);
  return at::from_blob(data, parameter.sizes(), keep_alive, options);
}

}  // namespace

Shards::Shards(std::vector<std::vector<at::Tensor>> groups, Collective& ranks)
    : groups_(std::move(groups)),
      ranks_(ranks),
      owners_(partition(counts_of(groups_), ranks.world_size())) {
  check_alike();
  move_parameters();
}

// Ranks that deal parameters in unlike ways would train on nonsense.
void Shards::check_alike() const {
  std::uint64_t hash = kHashStart;
  std::unordered_set<const at::TensorImpl*> seen;
  const auto add = [&hash](std::uint64_t number) { hash = hash_step(hash, number); };
  for (const auto& group : groups_) {
    add(group.size());
    for (const at::Tensor& parameter : group) {
      if (parameter.device().type() != device_of(ranks_))
        throw std::invalid_argument(
            fmt::format("ZeroOptimizer: a parameter is on {}, and the ranks of '{}' are on {}",
                        parameter.device().str(), ranks_.name(),
                        c10::DeviceTypeName(device_of(ranks_), /*lower_case=*/true)));
      add(static_cast<std::uint64_t>(parameter.numel()));
      add(static_cast<std::uint64_t>(parameter.scalar_type()));
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second)
        throw std::invalid_argument(
            "ZeroOptimizer: a parameter is in the list twice (of modules that share it?): give it "
            "once");
    }
  }
  if (seen.empty()) throw std::invalid_argument("ZeroOptimizer got an empty parameter list");
  require_same(ranks_, hash, "ZeroOptimizer: groups, sizes and types of the parameters");
}

// One owner after the other, so that what an owner shares is one row.
void Shards::move_parameters() {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, std::size_t>> at_bytes;
  std::size_t end = 0;
  for (int rank = 0; rank < ranks_.world_size(); ++rank) {
    const std::size_t begin = end;
    for (const auto& group : owned_by(rank)) {
      for (const at::Tensor& parameter : group) {
        at_bytes.emplace_back(parameter, end);
        places_[parameter.unsafeGetTensorImpl()] = {rank, nullptr};
        end += aligned(parameter.nbytes());
      }
    }
    parts_.push_back({rank, begin, end});
  }
  memory_ = ranks_.allocate(end);
  for (auto& [parameter, offset] : at_bytes) {
    std::byte* const data = memory_.get() + offset;
    const at::Tensor place = place_for(parameter, data, memory_);
    place.copy_(parameter);
    parameter.set_data(place);
    places_.at(parameter.unsafeGetTensorImpl()).data = data;
  }
}

Shards::~Shards() {
  if (!has_one_copy()) return;
  const at::NoGradGuard no_grad;
  try {
    for (const auto& group : groups_) {
      for (const at::Tensor& parameter : group) {
        // Null if it has no elements, and keeps the memory all the same.
        const void* const data = parameter.data_ptr();
        if (data == nullptr || data == places_.at(parameter.unsafeGetTensorImpl()).data)
          parameter.set_data(parameter.detach().clone());
      }
    }
  } catch (const std::exception&) {
    // There is no memory for it: it stays where it is, and keeps that.
    return;
  }
}

void Shards::use_one_copy() {
  const std::size_t bytes = parts_.back().end;
  const Flat all{memory_.get(), bytes, Dtype::kUInt8, "parameters"};
  if (ranks_.world_size() == 1 || bytes == 0 || has_one_copy()) return;
  check_places();
  if (ranks_.memory_of(all, ranks_.rank()) == nullptr) return;
  const SharedBuffer buffer = make_shared_buffer(bytes, ranks_);
  if (buffer.begin == nullptr) return;
  const at::NoGradGuard no_grad;
  for (const auto& group : groups_) {
    for (const at::Tensor& parameter : group) {
      Place& place = places_.at(parameter.unsafeGetTensorImpl());
      place.data = buffer.begin + (place.data - memory_.get());
      const at::Tensor there = place_for(parameter, place.data, buffer.keep);
      if (ranks_.rank() == 0) there.copy_(parameter);
      parameter.set_data(there);
    }
  }
  memory_.reset();
  one_copy_ = buffer.keep;
  ranks_.barrier();  // rank 0's values are there
}

std::vector<std::vector<at::Tensor>> Shards::owned_by(int rank) const {
  const auto counts = counts_of(groups_);
  std::vector<std::vector<at::Tensor>> owned;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    owned.emplace_back();
    for (const std::size_t parameter : worker::owned_by(rank, owners_[i], counts[i]))
      owned.back().push_back(groups_[i][parameter]);
  }
  return owned;
}

void Shards::check_places() const {
  for (const auto& group : groups_) {
    for (const at::Tensor& parameter : group) {
      // One without elements has no memory.
      if (parameter.numel() == 0) continue;
      if (parameter.data_ptr() == places_.at(parameter.unsafeGetTensorImpl()).data) continue;
      throw std::runtime_error(
          "ZeroOptimizer: a parameter has other memory than when the optimizer was made: convert "
          "and move the model "
          "before");
    }
  }
}

void Shards::begin_step() {
  if (has_one_copy()) ranks_.barrier();
}

void Shards::share() {
  if (ranks_.world_size() == 1) return;
  check_places();
  if (has_one_copy()) return ranks_.barrier();  // the owners have stepped
  const Flat all{memory_.get(), parts_.back().end, Dtype::kUInt8, "parameters of all owners"};
  ranks_.wait(ranks_.launch_all_gather(all, parts_));
  for (const Part& part : parts_) {
    if (part.owner != ranks_.rank()) traffic_.parameters += part.end - part.begin;
  }
}

std::vector<Part> Shards::parts_of(const Bucket& bucket) const {
  std::vector<Part> parts;
  std::size_t begin = 0;
  for (const at::Tensor& parameter : bucket.parameters()) {
    const auto place = places_.find(parameter.unsafeGetTensorImpl());
    if (place == places_.end())
      throw std::runtime_error(
          "ZeroOptimizer: reduce_scatter() needs all parameters of the DataParallel in the "
          "optimizer");
    const auto numbers = static_cast<std::size_t>(parameter.numel());
    const std::size_t end = begin + numbers * (parameter.is_complex() ? 2 : 1);
    parts.push_back({place->second.owner, begin, end});
    begin = end;
  }
  return parts;
}

// The factor is that of gradients that travel without a hook.
CommHook Shards::hook() {
  return [this](Bucket& bucket, Collective& /*ranks*/) {
    const std::vector<Part> parts = parts_of(bucket);
    if (ranks_.world_size() == 1) return;
    bucket.buffer().mul_(wrapped_number(1.0 / ranks_.world_size()));
    Flat flat = flat_of(bucket.buffer());
    flat.name = name_of_bucket(bucket.index());
    const Ticket sum = ranks_.launch_reduce_scatter(flat, parts, Reduction::kSum);
    bucket.then([this, sum] { ranks_.wait(sum); });
    const auto others = static_cast<std::size_t>(ranks_.world_size()) - 1;
    for (const Part& part : parts) {
      if (part.owner == ranks_.rank())
        traffic_.gradients += (part.end - part.begin) * size_of(flat.dtype) * others;
    }
  };
}

std::string state_bytes(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream text;
  archive.save_to(text);
  return std::move(text).str();
}

void load_state_bytes(const std::string& bytes, torch::optim::Optimizer& optimizer) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  optimizer.load(archive);
}

std::vector<std::string> gather_at(int to, const std::string& mine, Collective& ranks) {
  const std::uint64_t size = mine.size();
  const auto sizes = ranks.all_gather_bytes(std::as_bytes(std::span(&size, 1)));
  TensorCollective tensors(ranks);
  const auto device = device_of(ranks);
  if (ranks.rank() != to) {
    std::string copy = mine;
    const auto row = at::from_blob(copy.data(), {static_cast<std::int64_t>(size)}, at::kByte);
    tensors.send(row.to(device), to, "optimizer state");
    return {};
  }
  std::vector<std::string> texts;
  for (int rank = 0; rank < ranks.world_size(); ++rank) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, sizes[static_cast<std::size_t>(rank)].data(), sizeof theirs);
    texts.push_back(rank == to ? mine : std::string(theirs, '\0'));
    if (rank == to) continue;
    const auto count = static_cast<std::int64_t>(theirs);
    const at::Tensor row = at::empty({count}, at::TensorOptions(at::kByte).device(device));
    tensors.receive(row, rank, "optimizer state");
    at::from_blob(texts.back().data(), {count}, at::kByte).copy_(row);
  }
  return texts;
}

}  // namespace ddprun::worker
