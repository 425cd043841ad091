// The state of a training run on disk: weights, optimizer and how many epochs they have seen. Saved
// by one rank, loaded by all. The training thread only; LibTorch stays out of this header.
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

// Which state it is.
struct Stamp {
  int epoch = 0;    // the last one that the state has seen
  std::string job;  // the run that saved it; no other resumes from it unasked
};

// A larger file is not read: the net's weights and momentum are 10 MB, and every rank would hold
// what a mistaken file name brings.
inline constexpr std::uintmax_t kCheckpointBytesMax = std::uintmax_t{256} << 20;

// Replaces `path` atomically (atomic_file.h). Blocks until the disk has it.
Result<void> save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& net,
                             const torch::optim::Optimizer& optimizer, const Stamp& stamp);

// Errors: kSystem where the file cannot be read, kProtocol where it is no checkpoint, kLimit beyond
// kCheckpointBytesMax.
Result<Stamp> read_stamp(const std::filesystem::path& path);

struct Loaded {
  int epoch = 0;                  // Stamp::epoch
  std::uint64_t fingerprint = 0;  // of the file's bytes: ranks that loaded the same file agree
};

// Fills `net` and `optimizer`, which must have the shapes of those that were saved. Errors as
// read_stamp's, naming the file and what is wrong with it; `net` and `optimizer` may then be half
// filled and must not be used.
Result<Loaded> load_checkpoint(const std::filesystem::path& path, torch::nn::Module& net,
                               torch::optim::Optimizer& optimizer);

// FNV-1a over the bits of all parameters and then all buffers, in the order of registration: equal
// for equal weights.
std::uint64_t checksum(const torch::nn::Module& net);

}  // namespace ddprun::examples
