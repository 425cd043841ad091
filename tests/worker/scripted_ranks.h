// A collective without peers, for tests of what ranks tell each other.
#pragma once

#include <ddprun/collective.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::worker {

using Blob = std::vector<std::byte>;

template <typename T, std::size_t kCount>
Blob blob_of(const std::array<T, kCount>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// Rank 0 among peers whose answers are given.
class ScriptedRanks final : public Collective {
 public:
  explicit ScriptedRanks(std::vector<Blob> peers) : peers_(std::move(peers)) {}

  int rank() const override { return 0; }
  int world_size() const override { return static_cast<int>(peers_.size()) + 1; }
  Device device() const override { return Device::kCpu; }
  std::string_view name() const override { return "scripted"; }
  bool is_capturing() const override { return captured; }
  std::shared_ptr<std::byte> allocate(std::size_t /*bytes*/) override { return nullptr; }
  Ticket launch(Flat /*flat*/, Reduction /*reduction*/) override { return 0; }
  Ticket launch_reduce_scatter(Flat /*flat*/, std::span<const Part> /*parts*/,
                               Reduction /*reduction*/) override {
    return 0;
  }
  Ticket launch_all_gather(Flat /*flat*/, std::span<const Part> /*parts*/) override { return 0; }
  Ticket launch_all_to_all(Flat /*flat*/, std::span<const Transfer> /*transfers*/) override {
    return 0;
  }
  void progress() override {}
  void wait(Ticket /*ticket*/) override {}
  void broadcast(Flat /*flat*/, int /*root*/) override {}
  void barrier() override {}
  void monitored_barrier(std::chrono::milliseconds /*limit*/) override {}
  void send(Flat /*flat*/, int /*to*/) override {}
  void receive(Flat /*flat*/, int /*from*/) override {}
  std::unique_ptr<Collective> split(int /*color*/, int /*key*/) override { return nullptr; }
  void reset() override {}
  std::vector<Blob> all_gather_bytes(std::span<const std::byte> mine) override {
    std::vector<Blob> all{{mine.begin(), mine.end()}};
    all.insert(all.end(), peers_.begin(), peers_.end());
    return all;
  }

  bool captured = false;  // its stream

 private:
  std::vector<Blob> peers_;
};

}  // namespace ddprun::worker
