// What the ranks of a job do together: a few verbs, and the memory that gradients are summed in.
// Implementations: alone (world of one), shm (ranks of one host, CPU), nccl (GPUs).
//
// Every verb must be called by all ranks in the same order. One thread at a time per process (the
// training thread or the autograd thread, never both at once). Failure (a peer died, a deadline
// passed, ranks disagree on what they do) throws CollectiveError; after that only the destructor
// may be called, and the process should end: its agent is the recovery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace ddprun::worker {

class CollectiveError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A failure that all ranks of the host share and the one that met it has logged already: the
// program ends, without another line.
class LoggedError : public CollectiveError {
  using CollectiveError::CollectiveError;
};

enum class Dtype : std::uint8_t { kFloat32, kFloat64, kFloat16, kBFloat16, kInt32, kInt64, kByte };

// Bytes of one element.
std::size_t size_of(Dtype dtype);

// Where a collective's memory lies and its tensor verbs work.
enum class Device : std::uint8_t { kCpu, kCuda };

// Elements in a row, on the collective's device. Not owned.
struct Flat {
  void* data = nullptr;
  std::size_t count = 0;  // elements
  Dtype dtype = Dtype::kFloat32;

  std::size_t bytes() const { return count * size_of(dtype); }
};

// Names one launched sum; tickets count up by one per launch, and wrap.
using Ticket = std::uint32_t;

// Whether a counter that wraps has come to `target`. True for what lies less than 2^31 steps back,
// far more than are ever under way at once.
constexpr bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

class Collective {
 public:
  Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;
  Collective(Collective&&) = delete;
  Collective& operator=(Collective&&) = delete;
  virtual ~Collective() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual Device device() const = 0;
  virtual std::string_view name() const = 0;  // "alone", "shm", "nccl"

  // This rank's share of new memory, `bytes` long (equal on all ranks), zeroed, 64-byte aligned, on
  // device(). Only memory from here can be summed. Lives until the last copy of the pointer is
  // gone, also past the collective.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

  // Starts summing `flat` over all ranks, in place, and returns at once. `flat` lies in allocated
  // memory, at the same offset on all ranks, and must not be touched until wait(ticket) returned.
  // A sum under way holds its memory: the caller may let go of the pointer before it is complete.
  // On CUDA the sum starts after what the current stream holds now. Floats of 16 bits are summed in
  // 32 bits and rounded once. Not kByte.
  virtual Ticket launch_sum(Flat flat) = 0;

  // Does what launched sums have ready to be done by this rank, without waiting for anybody.
  virtual void progress() = 0;

  // Returns when the sum and all earlier ones are complete: `flat` holds the same bits on all
  // ranks.
  virtual void wait(Ticket ticket) = 0;

  // Copies root's elements to all other ranks. `flat` may lie anywhere on device(). On CUDA: after
  // what the current stream holds, complete on return.
  virtual void broadcast(Flat flat, int root) = 0;

  // Every rank's bytes, by rank, on every rank. Host memory; at most kGatherBytesMax from each
  // rank, lengths may differ.
  virtual std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) = 0;

  // Returns after every rank has called it.
  virtual void barrier() = 0;

  // Adds host numbers over all ranks, in rank order, so that all ranks get the same bits. For
  // metrics: sums and counts. Equal size on all ranks, at most kGatherBytesMax bytes.
  void sum(std::span<double> values);

  // Root's bytes on every rank, of any length; the other ranks' `mine` is ignored. Host memory. For
  // descriptions, not tensors.
  std::vector<std::byte> from_root(std::span<const std::byte> mine, int root);

  // One blob of all_gather, bytes. Shapes and metrics are small; tensors go through broadcast and
  // sums.
  static constexpr std::size_t kGatherBytesMax = std::size_t{256} << 10;

 protected:
  // Throws CollectiveError if a blob of `bytes` is beyond kGatherBytesMax.
  static void check_gather_size(std::size_t bytes);
};

// A world of one, on CPU. Its tickets count on from `last_ticket`, so that the wrap can be tested.
std::unique_ptr<Collective> make_alone_collective(Ticket last_ticket = 0);

}  // namespace ddprun::worker
