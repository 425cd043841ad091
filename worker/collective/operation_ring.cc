#include "worker/collective/operation_ring.h"

#include <fmt/format.h>

#include <chrono>

namespace ddprun::worker {
namespace {

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

const char* name_of(Verb verb) {
  switch (verb) {
    case Verb::kSum:
      return "sum";
    case Verb::kReduce:
      return "reduction";
    case Verb::kGather:
      return "gather";
    case Verb::kBarrier:
      return "barrier";
    case Verb::kBroadcast:
      return "broadcast";
    case Verb::kSend:
      return "send";
    case Verb::kReceive:
      return "receive";
  }
  return "operation of another version";
}

}  // namespace

std::uint32_t OperationRing::begin(Verb verb, std::uint64_t bytes, Dtype dtype) {
  const std::uint32_t number = begun_.load(std::memory_order_relaxed) + 1;
  entries_[number % kLength] = {.number = number,
                                .sequence = is_transfer(verb) ? ++transfers_ : ++collectives_,
                                .verb = verb,
                                .dtype = dtype,
                                .bytes = bytes,
                                .begun_ns = now_ns(),
                                .done_ns = 0};
  begun_.store(number, std::memory_order_release);
  return number;
}

void OperationRing::end(std::uint32_t number) {
  Operation& entry = entries_[number % kLength];
  if (entry.number == number && entry.done_ns == 0) entry.done_ns = now_ns();
}

std::optional<Operation> OperationRing::find(std::uint32_t number) const {
  const Operation entry = entries_[number % kLength];
  if (number == 0 || entry.number != number) return std::nullopt;
  return entry;
}

std::optional<Operation> OperationRing::last() const { return find(latest()); }

std::string OperationRing::describe(std::uint32_t number) const {
  const auto found = find(number);
  return found ? worker::describe(*found) : "another operation";
}

std::string describe(const Operation& operation) {
  const std::string size =
      operation.verb == Verb::kBarrier ? "" : fmt::format(" of {} bytes", operation.bytes);
  return fmt::format("{}{} (operation {})", name_of(operation.verb), size, operation.number);
}

}  // namespace ddprun::worker
