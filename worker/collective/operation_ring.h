// The last operations of one rank, in memory that the other ranks of the host read: whoever waits for
// a rank can say what it does instead. All ranks call the verbs in the same order, so the same number
// is the same operation on all of them. Zero-filled memory is a valid ring. Only its own rank writes;
// a reader may meet half an entry, and prints it to people.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::worker {

enum class Verb : std::uint8_t { kSum, kGather, kBarrier, kBroadcast };

struct Operation {
  std::uint32_t number;  // counts from 1, and wraps
  Verb verb;
  std::uint64_t bytes;
  std::int64_t begun_ns;  // of steady_clock
  std::int64_t done_ns;   // 0: not done
};

class OperationRing {
 public:
  static constexpr std::uint32_t kLength = 1024;

  // The rank begins its next operation. Returns its number.
  std::uint32_t begin(Verb verb, std::uint64_t bytes);
  void end(std::uint32_t number);

  // The number of the latest one; 0: none. After go_on_after(n) the next one is n + 1.
  std::uint32_t latest() const { return begun_.load(std::memory_order_acquire); }
  void go_on_after(std::uint32_t number) { begun_.store(number, std::memory_order_release); }

  // Nothing: no such operation yet, or it is too long ago.
  std::optional<Operation> find(std::uint32_t number) const;
  // The latest one; nothing: the rank has begun none.
  std::optional<Operation> last() const;
  // As below; "another operation" where there is none of this number.
  std::string describe(std::uint32_t number) const;

 private:
  std::atomic<std::uint32_t> begun_;  // the number of the latest one
  std::array<Operation, kLength> entries_;
};

// "sum of 4096 bytes (operation 12)", "barrier (operation 13)".
std::string describe(const Operation& operation);

}  // namespace ddprun::worker
