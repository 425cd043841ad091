// The state of a training run on disk, in Python's format: torch.load opens the file, and this
// opens torch.save's. It has more than Python's programs keep, so that a resumed run ends with the
// bits of an undisturbed one. It has the layout of the buckets, the sampler's position, and each
// rank's random numbers. Rank 0 writes, every rank reads to its own device. docs/checkpoints.md
// shows a file and both sides' code.
//
//   const CheckpointRun run{*net, optimizer, ranks, &parallel};
//   save_checkpoint("run.pt", run, {.epoch = epoch, .arch = "resnet18"}, {.is_best = best})
//       .value();
//   const auto resumed = load_checkpoint("run.pt", run).value();
//
// The training thread, all ranks. Errors are one line that names the file; value() throws them.
// This header includes nothing of LibTorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "worker/checkpoint/checkpoint_file.h"
#include "worker/checkpoint/load_options.h"
#include "worker/checkpoint/value.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddprun::worker {

class Collective;
class DataParallel;

// The parts of a run that are saved and loaded. Everything belongs to the caller.
struct CheckpointRun {
  torch::nn::Module& module;
  torch::optim::Optimizer& optimizer;
  Collective& ranks;
  DataParallel* parallel = nullptr;  // null: no buckets
};

// The program's own words on the run. The keys are those of PyTorch's ImageNet example.
struct CheckpointInfo {
  std::int64_t epoch = 0;  // how many are done
  std::string arch;
  double best_prec1 = 0;
  std::int64_t consumed =
      0;  // samples of the epoch under way that all ranks have trained on, together
  Value::Dict extra = {};  // anything else of the program's, under the key "extra"
};

struct LoadedCheckpoint {
  CheckpointInfo info;
  PrefixChange prefix;
  // The key of the weights: "state_dict", "model"; empty if the file is one state_dict as a whole.
  // And other keys whose weights fit the module, but were not taken: an average of the weights.
  std::string weights_key;
  std::vector<std::string> other_weights;
  // Parts that the file does not have, or has for another number of ranks. The run starts them
  // anew.
  bool optimizer = false;
  bool buckets = false;
  bool rng = false;
  std::int64_t world_size = 0;  // of the run that saved it; 0: not said
};

// All ranks call it, after the same step; only rank 0 writes. The file is replaced as a whole. Only
// rank 0 gets the error of a failed write. CUDA's random numbers are not kept.
Result<void> save_checkpoint(const std::filesystem::path& path, const CheckpointRun& run,
                             const CheckpointInfo& info, const SaveOptions& options = {});

// How the weights were found, for people: "'module.' was stripped from its keys"; empty for a file
// of our own.
std::string describe(const LoadedCheckpoint& loaded);

// All ranks call it, before the first forward(), with the path of the same file. It may be any
// framework's: a state_dict, or one below some key (weights_key.h); objects beside it are passed
// over. If one rank cannot load it, or finds other bytes than rank 0, all get an error. Then the
// module may be half filled.
Result<LoadedCheckpoint> load_checkpoint(const std::filesystem::path& path,
                                         const CheckpointRun& run, const LoadOptions& options = {});

// Reads the values that a file has on its run, without the tensors. One rank.
Result<CheckpointInfo> read_checkpoint_info(const std::filesystem::path& path);

}  // namespace ddprun::worker
