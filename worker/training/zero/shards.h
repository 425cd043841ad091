// The part of ZeroOptimizer that knows no optimizer: whose parameter is whose, the memory of the
// parameters, and what travels. One thread, at the same places on all ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/zero_optimizer.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "worker/training/zero/partition.h"

namespace ddprun::worker {

class Shards {
 public:
  // All ranks must call it, with parameters of the same sizes and types: else std::runtime_error on
  // all. Moves the parameters into memory of the collective: they stay the tensors that they are.
  Shards(std::vector<std::vector<at::Tensor>> groups, Collective& ranks);
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;
  Shards(Shards&&) = delete;
  Shards& operator=(Shards&&) = delete;
  // If there is one copy of the parameters, this rank takes one of its own.
  ~Shards();

  // By group, in the order of Python's local optimizers.
  std::vector<std::vector<at::Tensor>> owned_by(int rank) const;

  // Gives ranks that share memory ("shm") one copy of the parameters from now on: what rank 0 has.
  // Nothing is changed elsewhere, or where they have one already. All ranks must call it. Throws as
  // share() does.
  void use_one_copy();

  // Before the owners step. With one copy it waits until all ranks have come, so nobody is in a
  // forward() any more. All ranks must call it, and share() behind it.
  void begin_step();
  // Gives the parameters of each owner to all ranks. Throws std::runtime_error where somebody has
  // moved a parameter to other memory.
  void share();

  // Sums each bucket into the owners of its parameters, divided by the number of ranks.
  CommHook hook();

  Collective& ranks() const { return ranks_; }
  ZeroTraffic traffic() const { return traffic_; }

 private:
  struct Place {
    int owner;
    std::byte* data;
  };

  void check_alike() const;
  void move_parameters();
  void check_places() const;
  bool has_one_copy() const { return one_copy_ != nullptr; }
  std::vector<Part> parts_of(const Bucket& bucket) const;

  std::vector<std::vector<at::Tensor>> groups_;
  Collective& ranks_;
  std::vector<Owners> owners_;
  std::unordered_map<const at::TensorImpl*, Place> places_;
  std::vector<Part> parts_;              // of memory_, in bytes: one of each owner
  std::shared_ptr<std::byte> memory_;    // of this rank; null with one copy
  std::shared_ptr<std::byte> one_copy_;  // of all ranks of the host
  ZeroTraffic traffic_;
};

// The optimizer's state as bytes, and back: momenta, counts of steps and options.
std::string state_bytes(const torch::optim::Optimizer& optimizer);
void load_state_bytes(const std::string& bytes, torch::optim::Optimizer& optimizer);

// Rank `to` gets the texts of all ranks, by rank; the others get none. All must call it.
std::vector<std::string> gather_at(int to, const std::string& mine, Collective& ranks);

}  // namespace ddprun::worker
