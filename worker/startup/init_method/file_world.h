// The place of a rank that meets the others at a shared file (`file:///PATH`), and that file. Pure:
// what stands in the file is init_record.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "proto/worker_env.h"

namespace ddprun::worker {

// The path in `file:///PATH`; nothing for `env://`, or if `address` is empty. `named` is how the
// user gave it, for messages: `DDPRUN_INIT_METHOD=file:///PATH`. kInvalidArgument: anything else,
// such as `tcp://`, or a path that is not absolute. Also one with the `?rank=` that PyTorch would
// read.
Result<std::optional<std::string>> init_file_path(std::string_view address, std::string_view named);

// The program's own values for its rank: both or neither.
struct RankPreference {
  std::optional<int> rank = std::nullopt;
  std::optional<int> world_size = std::nullopt;
};

// Returns rank, world size and the job's name. The program says them, else RANK and WORLD_SIZE,
// with the other variables of a launcher. Else mpirun's or srun's variables say them.
// local_world_size is world_size where all ranks are known to be on this host. run_id is `none`
// where the job has no name. The addresses of the others are not known yet. `named` as above.
// Errors, each one line: none of them says it, or a value makes no sense. Or the rank is not below
// the world size.
Result<WorkerEnv> file_world(const RankPreference& preference, const EnvLookup& env,
                             std::string_view named);

}  // namespace ddprun::worker
