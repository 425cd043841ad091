// The elements of parameters that a rank has, for a distributed checkpoint. A row is what an
// optimizer steps as one tensor. It is a parameter; or a shard of ShardedParallel, which has parts
// of many parameters. The training thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/checkpoint.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "worker/checkpoint/dense_boxes.h"

namespace ddprun::worker {

// A part of a parameter in a row.
struct ParameterPart {
  std::string name;  // of the parameter
  DenseRange range;
  std::int64_t place = 0;  // of the range's begin in the row, in elements
  bool again = false;      // the parameter is here by another name, too
};

struct Row {
  at::Tensor tensor;
  std::vector<ParameterPart> parts;
  std::optional<std::int64_t> group;  // of the optimizer, if it steps the row; on this rank
};

// Errors: kInvalidArgument if the optimizer steps something else, or a parameter has gaps.
Result<std::vector<Row>> rows_of(const CheckpointRun& run);

// The elements of a dense tensor in one dimension, in the order of its memory. It shares them.
at::Tensor in_memory_order(const at::Tensor& tensor);

// The start of the keys of a parameter's optimizer state. "0.weight": "optim.state.0.weight.".
std::string state_prefix(const std::string& name);
// The same of the options of a group: "optim.param_groups.0.".
std::string group_prefix(std::size_t group);

}  // namespace ddprun::worker
