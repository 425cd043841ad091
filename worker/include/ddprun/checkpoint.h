// The state of a training run on disk, in Python's format: torch.load opens the file, and this
// opens torch.save's. It has more than Python's programs keep, so that a resumed run ends with the
// bits of an undisturbed one. It has the layout of the buckets, the sampler's position, and each
// rank's random numbers. Rank 0 writes, every rank reads to its own device. docs/checkpoints.md
// shows a file and both sides' code.
//
//   const CheckpointRun run{*net, optimizer, ranks, &parallel};
//   save_checkpoint("run.pt", run, {.epoch = epoch, .arch = "resnet18"}, {.is_best = best});
//   const auto resumed = load_checkpoint("run.pt", run);
//
// The training thread, all ranks. Errors are exceptions.
#pragma once

#include <ddprun/value.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddprun {

class Collective;
class DataParallel;
class ShardedParallel;

// Why a checkpoint was not saved or loaded. what() is one line that names the file.
class CheckpointError : public std::runtime_error {
 public:
  // Makes an error of one line. `of_system`: the system failed to read or write.
  CheckpointError(const std::string& message, bool of_system)
      : std::runtime_error(message), of_system_(of_system) {}

  // Says whether the system failed to read or write the file. The file itself may be sound.
  bool of_system() const { return of_system_; }

 private:
  bool of_system_;
};

// Options of save_checkpoint().
struct SaveOptions {
  // The file gets a second name as the best one so far: "model_best" with its endings, in its
  // folder.
  bool is_best = false;
};

// A change of a file's keys to the module's. Others' keys have the names of wrappers in them:
// "module." of DistributedDataParallel, "_orig_mod." of torch.compile, the attribute of a
// LightningModule. Empty if nothing was changed.
struct PrefixChange {
  std::string stripped;   // from the start of each of the file's keys: "module._orig_mod."
  std::string taken_out;  // from the middle: "_orig_mod."
  std::string added;      // to the start of each
};
// Returns a text for people: "'module.' was stripped from its keys". Empty if nothing was changed.
std::string describe(const PrefixChange& change);

// Options of load_checkpoint().
struct LoadOptions {
  bool strict_prefix = false;  // keys must be the module's, as they are
  // The key of the weights in the file: "model_ema"; "app.model" is below the key "app". Also a
  // start of names: "state_dict.net" are the tensors of `state_dict` whose names begin with "net.".
  // If it is empty, they are searched for.
  std::string weights_key = {};
  bool weights_only = false;  // neither the optimizer's state, random numbers nor buckets
};

// The parts of a run that are saved and loaded. Everything belongs to the caller.
struct CheckpointRun {
  torch::nn::Module& module;           // on the device where it trains
  torch::optim::Optimizer& optimizer;  // of the module's parameters
  Collective& ranks;                   // all ranks of the run
  DataParallel* parallel = nullptr;    // null: no buckets
  // Not null: its parameters and what the optimizer steps are shards. Only a distributed checkpoint
  // can have them.
  ShardedParallel* sharded = nullptr;
};

// The program's own words on the run. The keys are those of PyTorch's ImageNet example.
struct CheckpointInfo {
  std::int64_t epoch = 0;  // how many are done
  std::string arch;        // the model's name
  double best_prec1 = 0;   // the best accuracy so far, as the program counts it
  std::int64_t consumed =
      0;  // samples of the epoch under way that all ranks have trained on, together
  Value::Dict extra = {};  // anything else of the program's, under the key "extra"
};

// The result of load_checkpoint(): what the file had.
struct LoadedCheckpoint {
  CheckpointInfo info;  // defaults for what the file does not say
  PrefixChange prefix;  // of the keys of the weights
  // The key of the weights: "state_dict", "model"; empty if the file is one state_dict as a whole.
  std::string weights_key;
  // Other keys whose weights fit the module, but were not taken: an average of the weights.
  std::vector<std::string> other_weights;
  // Whether the optimizer's state was loaded. If not, the run starts it anew.
  bool optimizer = false;
  // Whether the layout of the buckets was loaded: the file has one, for as many ranks.
  bool buckets = false;
  // Whether each rank's random numbers were loaded: the file has them, for as many ranks.
  bool rng = false;
  std::int64_t world_size = 0;  // of the run that saved it; 0: not said
};

// Saves the run. All ranks must call it, after the same step; only rank 0 writes. The file is
// replaced as a whole. Throws CheckpointError, on rank 0 alone, for a failed write. CUDA's random
// numbers are not kept.
void save_checkpoint(const std::filesystem::path& path, const CheckpointRun& run,
                     const CheckpointInfo& info, const SaveOptions& options = {});

// Says for people how the weights were found: "'module.' was stripped from its keys". Empty for a
// file of our own.
std::string describe(const LoadedCheckpoint& loaded);

// Loads a file into the run's module and optimizer. All ranks must call it, before the first
// forward(), with the path of the same file. It may be any framework's: a state_dict, or one below
// some key; objects beside it are passed over. If one rank cannot load it, or finds other bytes
// than rank 0, all throw CheckpointError. Then the module may be half filled.
LoadedCheckpoint load_checkpoint(const std::filesystem::path& path, const CheckpointRun& run,
                                 const LoadOptions& options = {});

// Saves the run as a folder in the layout of torch.distributed.checkpoint (DCP), which loads it on
// any number of ranks. Each rank writes its shards, or its own part of a ZeroOptimizer, or an even
// part of what all have. All ranks must call it, after the same step, with one folder that all see.
// The folder is replaced as a whole, and must have nothing but a checkpoint. Throws
// CheckpointError, on all ranks.
void save_distributed_checkpoint(const std::filesystem::path& folder, const CheckpointRun& run,
                                 const CheckpointInfo& info);

// Loads such a folder, by any number of ranks. It may be one of DCP's own. There the weights are
// below "model", and the optimizer's state below "optim", as get_state_dict() gives them. All ranks
// must call it, before the first forward(). If one rank cannot load it, all throw CheckpointError.
// Then the module may be half filled.
LoadedCheckpoint load_distributed_checkpoint(const std::filesystem::path& folder,
                                             const CheckpointRun& run);

// Saves runs while they train on. A save copies the state, and a thread writes the copy. There is
// one at a time: the next save waits for the one before. The memory of the copy is kept.
//
//   AsyncCheckpoint checkpoint(ranks);
//   …
//   checkpoint.save("run.pt", run, {.epoch = epoch});  // returns when the state is copied
//   …
//   checkpoint.wait();  // before the program ends
//
// wait(), or the next save, throws the error of a save. The next save throws it on all ranks, and
// begins nothing. So ranks stay in step if the program catches it. wait() throws that of save() on
// rank 0 alone. All ranks must call the same functions, from one thread.
class AsyncCheckpoint {
 public:
  // Asks no other rank. `ranks` must outlive it.
  explicit AsyncCheckpoint(Collective& ranks);
  AsyncCheckpoint(const AsyncCheckpoint&) = delete;
  AsyncCheckpoint& operator=(const AsyncCheckpoint&) = delete;
  AsyncCheckpoint(AsyncCheckpoint&&) = delete;
  AsyncCheckpoint& operator=(AsyncCheckpoint&&) = delete;
  // Waits for the save under way. An error goes to stderr, as one line.
  ~AsyncCheckpoint();

  // Does what save_checkpoint() does.
  void save(const std::filesystem::path& path, const CheckpointRun& run, const CheckpointInfo& info,
            const SaveOptions& options = {});
  // Does what save_distributed_checkpoint() does. Ranks tell each other in a group of their own,
  // which the first call makes. If ranks have GPUs, it returns when all is written.
  void save_distributed(const std::filesystem::path& folder, const CheckpointRun& run,
                        const CheckpointInfo& info);
  // Waits until the file, or the folder, has its name.
  void wait();
  // Says whether a save is under way. This rank alone.
  bool is_saving() const;

 private:
  struct Saving;
  std::unique_ptr<Saving> saving_;
};

// Returns a hash (FNV-1a) of the bits of all parameters and then all buffers, in the order of
// registration. Equal for equal weights. One rank; require_same() compares it over all.
std::uint64_t checksum(const torch::nn::Module& module);

// Throws CheckpointError if save_checkpoint() could not replace this file. It could if the file is
// no folder or device, and its folder can be written to. For programs that want to know before they
// train. One rank.
void check_checkpoint_path(const std::filesystem::path& path);

// Throws CheckpointError if save_distributed_checkpoint() could not replace this folder. It could
// if the folder does not exist, or has nothing but a distributed checkpoint. One rank.
void check_checkpoint_folder(const std::filesystem::path& folder);

// Reads the values that a file has on its run, without the tensors. One rank. Throws
// CheckpointError.
CheckpointInfo read_checkpoint_info(const std::filesystem::path& path);

}  // namespace ddprun
