// The state of a training run on disk: weights, optimizer and how many epochs they have seen. One
// rank saves it, all ranks load it. Call from the training thread only. This header includes
// nothing of LibTorch: it is cheap to include.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "proto/result.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddprun::examples {

// What a checkpoint says about itself.
struct Stamp {
  int epoch = 0;    // the last one that the state has seen
  std::string job;  // the job that saved it; another job uses it only with --resume
};

// A larger file is not read. The net's weights and momentum are 10 MB. A wrong file name must not
// fill the memory of every rank.
inline constexpr std::uintmax_t kCheckpointBytesMax = std::uintmax_t{256} << 20;

// Replaces `path` as a whole (atomic_file.h). Blocks until the disk has it.
Result<void> save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& net,
                             const torch::optim::Optimizer& optimizer, const Stamp& stamp);

// Errors: kSystem if the file cannot be read, kProtocol if it is no checkpoint, kLimit if it is
// larger than kCheckpointBytesMax.
Result<Stamp> read_stamp(const std::filesystem::path& path);

struct Loaded {
  int epoch = 0;                  // Stamp::epoch
  std::uint64_t fingerprint = 0;  // of the file's bytes: ranks that loaded the same file agree
};

// Fills `net` and `optimizer`. They must have the same parameters as those that were saved. Errors
// are those of read_stamp, and name the file and what is wrong with it. After an error `net` and
// `optimizer` may be half filled: do not use them.
Result<Loaded> load_checkpoint(const std::filesystem::path& path, torch::nn::Module& net,
                               torch::optim::Optimizer& optimizer);

// A hash (FNV-1a) of the bits of all parameters and then all buffers, in the order of registration.
// Equal for equal weights.
std::uint64_t checksum(const torch::nn::Module& net);

}  // namespace ddprun::examples
