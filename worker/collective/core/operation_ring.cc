#include "worker/collective/core/operation_ring.h"

#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <cstddef>
#include <string_view>

#include "proto/worker_page.h"

namespace ddprun::worker {
namespace {

using Words = std::array<std::uint64_t, sizeof(Operation) / sizeof(std::uint64_t)>;
constexpr std::size_t kDoneWord = offsetof(Operation, done_ns) / sizeof(std::uint64_t);

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

const char* name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::kSum:
      return "sum";
    case OperationKind::kReduce:
      return "reduction";
    case OperationKind::kGather:
      return "gather";
    case OperationKind::kBarrier:
      return "barrier";
    case OperationKind::kBroadcast:
      return "broadcast";
    case OperationKind::kSend:
      return "send";
    case OperationKind::kReceive:
      return "receive";
    case OperationKind::kReduceScatter:
      return "reduce-scatter";
    case OperationKind::kAllGather:
      return "all-gather";
    case OperationKind::kAllToAll:
      return "all-to-all";
  }
  return "operation of another version";
}

}  // namespace

std::uint32_t OperationRing::begin(OperationKind kind, std::uint64_t bytes, Dtype dtype,
                                   const OperationName& name, std::uint64_t parts) {
  const std::uint32_t number = begun_.load(std::memory_order_relaxed) + 1;
  const Operation operation{.number = number,
                            .sequence = is_transfer(kind) ? ++transfers_ : ++collectives_,
                            .kind = kind,
                            .dtype = dtype,
                            .name = name,
                            .bytes = bytes,
                            .begun_ns = now_ns(),
                            .done_ns = 0,
                            .parts = parts};
  const auto words = std::bit_cast<Words>(operation);
  Entry& entry = entries_[number % kLength];
  for (std::size_t i = 0; i < words.size(); ++i)
    entry[i].store(words[i], std::memory_order_relaxed);
  begun_.store(number, std::memory_order_release);
  own_worker_page().calls_begun.fetch_add(1, std::memory_order_relaxed);
  return number;
}

void OperationRing::end(std::uint32_t number) {
  Entry& entry = entries_[number % kLength];
  const Operation operation = read(entry);
  if (operation.number != number || operation.done_ns != 0) return;
  entry[kDoneWord].store(static_cast<std::uint64_t>(now_ns()), std::memory_order_relaxed);
  own_worker_page().calls_done.fetch_add(1, std::memory_order_relaxed);
}

// Calls that an error has ended are never done: nobody waits in them any more.
void OperationRing::go_on_after(std::uint32_t number) {
  collectives_ = number;
  begun_.store(number, std::memory_order_release);
  WorkerPage& page = own_worker_page();
  page.calls_done = page.calls_begun.load();
}

Operation OperationRing::read(const Entry& entry) {
  Words words{};
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = entry[i].load(std::memory_order_relaxed);
  return std::bit_cast<Operation>(words);
}

std::optional<Operation> OperationRing::find(std::uint32_t number) const {
  const Operation entry = read(entries_[number % kLength]);
  if (number == 0 || entry.number != number) return std::nullopt;
  return entry;
}

std::optional<Operation> OperationRing::last() const { return find(latest()); }

std::string OperationRing::describe(std::uint32_t number) const {
  const auto found = find(number);
  return found ? worker::describe(*found) : "another operation";
}

std::string describe(const Operation& operation) {
  const std::string_view name = operation.name.text();
  const std::string size =
      operation.kind == OperationKind::kBarrier
          ? ""
          : fmt::format(" of {}{}{} bytes", name, name.empty() ? "" : ", ", operation.bytes);
  const std::string parts =
      operation.parts == 0 ? "" : fmt::format(" in parts {:08x}", operation.parts & 0xFFFFFFFFU);
  return fmt::format("{}{}{} (operation {})", name_of(operation.kind), size, parts,
                     operation.number);
}

}  // namespace ddprun::worker
