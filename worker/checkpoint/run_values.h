// The values of a run that a checkpoint has, beside weights and the optimizer's state. A file and a
// distributed checkpoint have the same. The training thread. Errors are one line.
#pragma once

#include <ddprun/checkpoint.h>
#include <ddprun/value.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/result.h"
#include "worker/checkpoint/pickle.h"

namespace ddprun::worker {

// Parameter indices by bucket.
using Layout = std::vector<std::vector<std::size_t>>;
std::optional<Layout> layout_of(const Value& value);

// This rank's random numbers, as torch.get_rng_state() gives them; and back.
Result<Value> own_rng();
Result<void> load_own_rng(const Value& state);
// Those of all ranks. All must call it.
Result<Value> gather_rng(Collective& ranks);

// The program's words, the number of ranks, and the buckets once they are rebuilt.
Value::Dict info_values(const CheckpointRun& run, const CheckpointInfo& info);
// The program's words of a file; defaults for what it does not say.
CheckpointInfo info_of(const Value& file);

// The whole of a file.
Result<Value> checkpoint_value(const CheckpointRun& run, const CheckpointInfo& info, Value rng);

// The run as rank 0 writes it; nothing on the others. All must call it. Storages are the run's own.
// Throws CheckpointError, which names `path`.
std::optional<PickleOutput> pickled_run(const std::filesystem::path& path, const CheckpointRun& run,
                                        const CheckpointInfo& info);

[[noreturn]] void throw_checkpoint_error(const Error& error);

}  // namespace ddprun::worker
