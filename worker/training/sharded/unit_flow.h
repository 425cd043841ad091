// The moves of units between ranks on GPUs, where no call waits on the host. It says where each
// row is gathered, and what waits for what. A row is gathered on a stream of its own while the one
// before it is in use. Gradients are summed on another one while backward() goes on. No LibTorch:
// tests run it on simulated GPUs.
//
// A program may change its stream between calls. It orders its own tensors then, and the memory
// here has its own order. One thread at a time. All ranks call the same functions in the same
// order.
#pragma once

#include <ddprun/collective.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::worker {

// A unit as ranks send it: its parameters in a row, and as many gradients.
struct UnitRow {
  std::string name;  // for messages
  std::size_t elements = 0;
  Dtype gathered = Dtype::kFloat32;  // of the parameters
  Dtype summed = Dtype::kFloat32;    // of the gradients
  std::vector<Part> parts{};         // the ranks' shards

  std::size_t gathered_bytes() const { return elements * size_of(gathered); }
  std::size_t summed_bytes() const { return elements * size_of(summed); }
};

// A place in a stream of the GPU. Null stands for no work.
using StreamMark = std::shared_ptr<void>;

// The operations on one rank's tensors. Each puts work into the current stream, and waits for
// nothing. Memory belongs to the caller.
class UnitTensors {
 public:
  UnitTensors() = default;
  UnitTensors(const UnitTensors&) = delete;
  UnitTensors& operator=(const UnitTensors&) = delete;
  UnitTensors(UnitTensors&&) = delete;
  UnitTensors& operator=(UnitTensors&&) = delete;
  virtual ~UnitTensors() = default;

  // Copies this rank's shard to its place in the row.
  virtual void put_shard(std::size_t unit, std::byte* row) = 0;
  // From now on the unit's parameters are those in the row, or none.
  virtual void place(std::size_t unit, std::byte* row) = 0;
  virtual void remove(std::size_t unit) = 0;
  // Moves the unit's gradients there, and zeros where it has none.
  virtual void move_gradients(std::size_t unit, std::byte* sums) = 0;
  // Adds this rank's part of the averages to the gradient of its shard.
  virtual void add_average(std::size_t unit, std::byte* sums) = 0;

  // Marks the place that the current stream has come to.
  virtual StreamMark mark() = 0;
  // Work that the current stream gets from now on starts after the mark, which is not null.
  virtual void hold(const StreamMark& mark) = 0;
};

class UnitFlow {
 public:
  // All ranks must call it, with the same rows. It makes two groups of all `ranks`, and the memory
  // for the gradients of one unit. `tensors` must outlive this.
  UnitFlow(std::vector<UnitRow> rows, Collective& ranks, UnitTensors& tensors);
  UnitFlow(const UnitFlow&) = delete;
  UnitFlow& operator=(const UnitFlow&) = delete;
  UnitFlow(UnitFlow&&) = delete;
  UnitFlow& operator=(UnitFlow&&) = delete;
  // The current stream comes behind all that uses the memory here, and then drops it. A unit that
  // is still placed is the exception: the program orders the current stream behind its use.
  ~UnitFlow();

  // These are the functions of Units (units.h).
  void gather(std::size_t unit);
  void gather_ahead(std::size_t unit);
  void release(std::size_t unit);
  void sum(std::size_t unit);
  void finish_sums();
  void begin_step();

  // Returns the bytes that this rank has got from the others.
  std::uint64_t received_bytes() const { return received_; }

 private:
  // Memory for the row of any unit. It is free once the mark has passed.
  struct Slot {
    std::shared_ptr<std::byte> memory;
    StreamMark free;
  };
  struct GatheredUnit {
    Slot slot;
    Ticket ticket;
    bool placed = false;
  };
  struct UnitSum {
    std::size_t unit;
    Ticket ticket;
  };

  Slot take_slot();
  void hold(const StreamMark& mark) {
    if (mark) tensors_.hold(mark);
  }

  const std::vector<UnitRow> rows_;
  UnitTensors& tensors_;
  std::unique_ptr<Collective> gathers_;  // a stream each
  std::unique_ptr<Collective> sums_;
  std::shared_ptr<std::byte> gradients_;  // of one unit
  std::vector<std::optional<GatheredUnit>> gathered_;
  std::vector<Slot> slots_;  // unused
  std::optional<UnitSum> under_way_;
  StreamMark added_;  // the latest average
  std::uint64_t received_ = 0;
};

}  // namespace ddprun::worker
