#include "worker/checkpoint/run_parts.h"

#include <ddprun/sharded_parallel.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <utility>

namespace ddprun::worker {
namespace {

std::vector<Row> sharded_rows(ShardedParallel& sharded) {
  std::vector<Row> rows;
  for (const at::Tensor& shard : sharded.shards()) rows.push_back({shard, {}, std::nullopt});
  for (const ShardedParameter& each : sharded.parameters())
    rows[each.shard].parts.push_back(
        {each.name, {each.sizes, each.strides, each.begin, each.end}, each.place, each.again});
  return rows;
}

std::vector<Row> whole_rows(const torch::nn::Module& module) {
  std::vector<Row> rows;
  std::map<const at::TensorImpl*, std::size_t> places;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    const auto [place, added] = places.try_emplace(tensor.unsafeGetTensorImpl(), rows.size());
    if (added) rows.push_back({tensor, {}, std::nullopt});
    rows[place->second].parts.push_back(
        {item.key(), whole_range(tensor.sizes().vec(), tensor.strides().vec()), 0, !added});
  }
  return rows;
}

Result<void> check_dense(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    for (const ParameterPart& part : row.parts) {
      if (!is_dense(part.range.sizes, part.range.strides))
        return Error(ErrorCode::kInvalidArgument,
                     fmt::format("parameter '{}' has gaps in memory", part.name));
    }
  }
  return {};
}

// Says of each row in which group the optimizer steps it. Returns whether it steps nothing else.
bool find_groups(const torch::optim::Optimizer& optimizer, std::vector<Row>& rows) {
  std::map<const at::TensorImpl*, Row*> by_tensor;
  for (Row& row : rows) by_tensor[row.tensor.unsafeGetTensorImpl()] = &row;
  std::int64_t group = 0;
  for (const auto& stepped : optimizer.param_groups()) {
    for (const at::Tensor& tensor : stepped.params()) {
      const auto row = by_tensor.find(tensor.unsafeGetTensorImpl());
      if (row == by_tensor.end()) return false;
      row->second->group = group;
    }
    ++group;
  }
  return true;
}

}  // namespace

Result<std::vector<Row>> rows_of(const CheckpointRun& run) {
  auto rows = run.sharded != nullptr ? sharded_rows(*run.sharded) : whole_rows(run.module);
  if (auto checked = check_dense(rows); !checked) return checked.error();
  if (find_groups(run.optimizer, rows)) return rows;
  return Error(ErrorCode::kInvalidArgument,
               run.sharded != nullptr
                   ? "the optimizer steps a tensor that is no shard: make it with shards()"
                   : "the optimizer steps a tensor that is no parameter of the module");
}

at::Tensor in_memory_order(const at::Tensor& tensor) {
  return tensor.detach().as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

std::string state_prefix(const std::string& name) { return fmt::format("optim.state.{}.", name); }

std::string group_prefix(std::size_t group) { return fmt::format("optim.param_groups.{}.", group); }

}  // namespace ddprun::worker
