// Collectives for tests that hand all to another one: as it is, and counted.
#pragma once

#include <ddprun/collective.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::worker {

class PassingCollective : public Collective {
 public:
  explicit PassingCollective(Collective& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  Device device() const override { return inner_.device(); }
  int gpu() const override { return inner_.gpu(); }
  std::string_view name() const override { return inner_.name(); }
  bool is_capturing() const override { return inner_.is_capturing(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  Ticket launch(Flat flat, Reduction reduction) override { return inner_.launch(flat, reduction); }
  Ticket launch_reduce_scatter(Flat flat, std::span<const Part> parts,
                               Reduction reduction) override {
    return inner_.launch_reduce_scatter(flat, parts, reduction);
  }
  Ticket launch_all_gather(Flat flat, std::span<const Part> parts) override {
    return inner_.launch_all_gather(flat, parts);
  }
  Ticket launch_all_to_all(Flat flat, std::span<const Transfer> transfers) override {
    return inner_.launch_all_to_all(flat, transfers);
  }
  void progress() override { inner_.progress(); }
  void wait(Ticket ticket) override { inner_.wait(ticket); }
  void broadcast(Flat flat, int root) override { inner_.broadcast(flat, root); }
  std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> mine) override {
    return inner_.all_gather_bytes(mine);
  }
  void barrier() override { inner_.barrier(); }
  void monitored_barrier(std::chrono::milliseconds limit) override {
    inner_.monitored_barrier(limit);
  }
  void send(Flat flat, int to) override { inner_.send(flat, to); }
  void receive(Flat flat, int from) override { inner_.receive(flat, from); }
  std::unique_ptr<Collective> split(int color, int key) override {
    return inner_.split(color, key);
  }
  std::unique_ptr<Collective> on_gpu(int gpu) override { return inner_.on_gpu(gpu); }
  std::uint32_t resets() const override { return inner_.resets(); }
  std::string flight_record() const override { return inner_.flight_record(); }
  void check() override { inner_.check(); }
  void reset() override { inner_.reset(); }

 private:
  Collective& inner_;
};

// Says that the ranks have GPUs. It counts what would have given NCCL memory of the host.
class SaysGpus final : public PassingCollective {
 public:
  using PassingCollective::PassingCollective;

  Device device() const override { return Device::kCuda; }
  void broadcast(Flat flat, int root) override {
    ++broadcasts;
    PassingCollective::broadcast(flat, root);
  }

  int broadcasts = 0;
};

class CountingCollective final : public PassingCollective {
 public:
  using PassingCollective::PassingCollective;

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    allocated_bytes += bytes;
    return PassingCollective::allocate(bytes);
  }
  Ticket launch(Flat flat, Reduction reduction) override {
    ++calls;
    if (!flat.name.text().ends_with("(weights)")) summed.push_back(flat);
    return PassingCollective::launch(flat, reduction);
  }
  Ticket launch_reduce_scatter(Flat flat, std::span<const Part> parts,
                               Reduction reduction) override {
    ++calls;
    return PassingCollective::launch_reduce_scatter(flat, parts, reduction);
  }
  Ticket launch_all_gather(Flat flat, std::span<const Part> parts) override {
    ++calls;
    return PassingCollective::launch_all_gather(flat, parts);
  }
  void broadcast(Flat flat, int root) override {
    ++calls;
    ++broadcasts;
    broadcast_bytes.push_back(flat.bytes());
    most_at_once = std::max(most_at_once, ++at_once_);
    PassingCollective::broadcast(flat, root);
    --at_once_;
  }
  std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> mine) override {
    ++calls;
    return PassingCollective::all_gather_bytes(mine);
  }
  void barrier() override {
    ++calls;
    PassingCollective::barrier();
  }
  void monitored_barrier(std::chrono::milliseconds limit) override {
    ++calls;
    PassingCollective::monitored_barrier(limit);
  }
  void send(Flat flat, int to) override {
    ++calls;
    PassingCollective::send(flat, to);
  }
  void receive(Flat flat, int from) override {
    ++calls;
    PassingCollective::receive(flat, from);
  }
  std::unique_ptr<Collective> split(int color, int key) override {
    ++calls;
    return PassingCollective::split(color, key);
  }

  // In the order of their launch, but for the one of each pass that compares weights.
  std::vector<Flat> summed;
  int calls = 0;  // of all kinds, but for allocate(), progress(), wait() and reset()
  int broadcasts = 0;
  std::vector<std::size_t> broadcast_bytes;
  int most_at_once = 0;  // broadcasts under way
  std::size_t allocated_bytes = 0;

 private:
  int at_once_ = 0;
};

}  // namespace ddprun::worker
