// A collective that counts what goes through it.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "worker/collective/collective.h"

namespace ddprun::worker {

class CountingCollective final : public Collective {
 public:
  explicit CountingCollective(Collective& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  Device device() const override { return inner_.device(); }
  std::string_view name() const override { return inner_.name(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  Ticket launch_sum(Flat flat) override {
    summed.push_back(flat);
    return inner_.launch_sum(flat);
  }
  void progress() override { inner_.progress(); }
  void wait(Ticket ticket) override { inner_.wait(ticket); }
  void broadcast(Flat flat, int root) override {
    ++broadcasts;
    inner_.broadcast(flat, root);
  }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override {
    return inner_.all_gather(mine);
  }
  void barrier() override { inner_.barrier(); }
  void reset() override { inner_.reset(); }

  std::vector<Flat> summed;  // in the order of their launch
  int broadcasts = 0;

 private:
  Collective& inner_;
};

}  // namespace ddprun::worker
