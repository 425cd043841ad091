#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/collective/kernels/ring_order.h"
#include "worker/collective/tcp/tcp_operation.h"

namespace ddprun::worker {
namespace {

// Bytes that went to a peer, and came from it.
struct Counts {
  std::size_t sent = 0;
  std::size_t received = 0;
};

class TcpBarrier final : public TcpOperation {
 public:
  using TcpOperation::TcpOperation;
  std::span<const std::byte> to_send(std::size_t /*peer*/) const override { return {}; }
  void sent(std::size_t /*peer*/, std::size_t /*bytes*/) override {}
  bool all_sent(std::size_t /*peer*/) const override { return true; }
  std::span<std::byte> to_receive(std::size_t /*peer*/) override { return {}; }
  void received(std::size_t /*peer*/, std::size_t /*bytes*/) override {}
  bool all_received(std::size_t /*peer*/) const override { return true; }
};

class TcpGather final : public TcpOperation {
 public:
  TcpGather(const OperationHead& head, TcpPlace place, std::vector<std::vector<std::byte>>& parts)
      : TcpOperation(head), place_(place), parts_(parts), counts_(place.ranks) {}

  // The other's part may have another length.
  bool meet(std::size_t peer, const OperationHead& theirs) override {
    OperationHead comparable = theirs;
    comparable.bytes = head().bytes;
    if (!TcpOperation::meet(peer, comparable) || theirs.bytes > Collective::kGatherBytesMax)
      return false;
    parts_[peer].resize(theirs.bytes);
    return true;
  }
  std::span<const std::byte> to_send(std::size_t peer) const override {
    return std::span(parts_[place_.rank]).subspan(counts_[peer].sent);
  }
  void sent(std::size_t peer, std::size_t bytes) override { counts_[peer].sent += bytes; }
  bool all_sent(std::size_t peer) const override { return to_send(peer).empty(); }
  std::span<std::byte> to_receive(std::size_t peer) override {
    return std::span(parts_[peer]).subspan(counts_[peer].received);
  }
  void received(std::size_t peer, std::size_t bytes) override { counts_[peer].received += bytes; }
  bool all_received(std::size_t peer) const override {
    return counts_[peer].received == parts_[peer].size();
  }

 private:
  TcpPlace place_;
  std::vector<std::vector<std::byte>>& parts_;
  std::vector<Counts> counts_;  // by rank
};

class TcpBroadcast final : public TcpOperation {
 public:
  TcpBroadcast(const OperationHead& head, TcpPlace place, std::span<std::byte> data)
      : TcpOperation(head), place_(place), data_(data), counts_(place.ranks) {}

  // Root: the peer's chunk, then root's own. Another rank: what has come of its chunk, to all but
  // root.
  std::span<const std::byte> to_send(std::size_t peer) const override {
    const std::size_t sent = counts_[peer].sent;
    if (place_.rank == root()) {
      const auto theirs = chunk(peer);
      return sent < theirs.size() ? theirs.subspan(sent)
                                  : chunk(root()).subspan(sent - theirs.size());
    }
    if (peer == root()) return {};
    const auto mine = chunk(place_.rank);
    return mine.subspan(sent, std::min(counts_[root()].received, mine.size()) - sent);
  }
  void sent(std::size_t peer, std::size_t bytes) override { counts_[peer].sent += bytes; }
  bool all_sent(std::size_t peer) const override {
    return counts_[peer].sent == travels(place_.rank, peer);
  }

  std::span<std::byte> to_receive(std::size_t peer) override {
    const std::size_t received = counts_[peer].received;
    if (place_.rank == root()) return {};
    if (peer != root()) return chunk(peer).subspan(received);
    const auto mine = chunk(place_.rank);
    return received < mine.size() ? mine.subspan(received)
                                  : chunk(root()).subspan(received - mine.size());
  }
  void received(std::size_t peer, std::size_t bytes) override { counts_[peer].received += bytes; }
  bool all_received(std::size_t peer) const override {
    return counts_[peer].received == travels(peer, place_.rank);
  }

  bool owes(std::size_t peer) const override { return peer == root() && !all_received(peer); }

 private:
  std::size_t root() const { return static_cast<std::size_t>(head().root); }
  std::span<std::byte> chunk(std::size_t rank) const {
    const Chunk bounds = ring_chunk(data_.size(), 1, place_.ranks, rank);
    return data_.subspan(bounds.begin, bounds.end - bounds.begin);
  }
  // Bytes in all from one rank to another.
  std::size_t travels(std::size_t from, std::size_t to) const {
    if (to == root()) return 0;
    return from == root() ? chunk(to).size() + chunk(root()).size() : chunk(from).size();
  }

  TcpPlace place_;
  std::span<std::byte> data_;
  std::vector<Counts> counts_;  // by rank
};

class TcpAlongRoutes final : public TcpOperation {
 public:
  TcpAlongRoutes(const OperationHead& head, TcpRoutes routes)
      : TcpOperation(head), routes_(std::move(routes)), counts_(routes_.in.size()) {}

  std::span<const std::byte> to_send(std::size_t peer) const override {
    return routes_.to(peer).from(counts_[peer].sent);
  }
  void sent(std::size_t peer, std::size_t bytes) override { counts_[peer].sent += bytes; }
  bool all_sent(std::size_t peer) const override {
    return counts_[peer].sent == routes_.to(peer).size();
  }
  std::span<std::byte> to_receive(std::size_t peer) override {
    return routes_.in[peer].from(counts_[peer].received);
  }
  void received(std::size_t peer, std::size_t bytes) override { counts_[peer].received += bytes; }
  bool all_received(std::size_t peer) const override {
    return counts_[peer].received == routes_.in[peer].size();
  }

 private:
  TcpRoutes routes_;
  std::vector<Counts> counts_;  // by rank
};

class TcpTransfer final : public TcpOperation {
 public:
  TcpTransfer(const OperationHead& head, std::size_t peer, std::span<std::byte> data)
      : TcpOperation(head), peer_(peer), data_(data) {}

  bool involves(std::size_t peer) const override { return peer == peer_; }
  bool meet(std::size_t /*peer*/, const OperationHead& theirs) override {
    return theirs.kind == (sends() ? OperationKind::kReceive : OperationKind::kSend) &&
           theirs.bytes == head().bytes;
  }
  std::span<const std::byte> to_send(std::size_t /*peer*/) const override {
    return sends() ? data_.subspan(moved_) : std::span<std::byte>();
  }
  void sent(std::size_t /*peer*/, std::size_t bytes) override { moved_ += bytes; }
  bool all_sent(std::size_t /*peer*/) const override { return !sends() || moved_ == data_.size(); }
  std::span<std::byte> to_receive(std::size_t /*peer*/) override {
    return sends() ? std::span<std::byte>() : data_.subspan(moved_);
  }
  void received(std::size_t /*peer*/, std::size_t bytes) override { moved_ += bytes; }
  bool all_received(std::size_t /*peer*/) const override {
    return sends() || moved_ == data_.size();
  }

 private:
  bool sends() const { return head().kind == OperationKind::kSend; }

  std::size_t peer_;
  std::span<std::byte> data_;
  std::size_t moved_ = 0;
};

// Behind a sum's type: how it differs from a plain one. A switch, so that the compiler finds a
// reduction that has no words.
std::string_view manner_of(const OperationHead& head) {
  const bool reduces = head.kind == OperationKind::kSum || head.kind == OperationKind::kReduce ||
                       head.kind == OperationKind::kReduceScatter;
  if (!reduces) return "";
  switch (head.reduction) {
    case Reduction::kSum:
      return "";
    case Reduction::kWideSum:
      return " in 32 bits";
    case Reduction::kAverage:
      return " to their average";
    case Reduction::kMin:
      return " to the least";
    case Reduction::kMax:
      return " to the greatest";
  }
  return " in the way of another version";
}

}  // namespace

bool TcpOperation::meet(std::size_t /*peer*/, const OperationHead& theirs) {
  return theirs.sequence == head_.sequence && theirs.kind == head_.kind &&
         theirs.dtype == head_.dtype && theirs.reduction == head_.reduction &&
         theirs.root == head_.root && theirs.bytes == head_.bytes && theirs.parts == head_.parts;
}

std::string describe(const OperationHead& head) {
  const std::string type =
      head.dtype == Dtype::kUInt8 ? "" : fmt::format(" of type {}", name_of(head.dtype));
  const std::string root = head.root < 0 ? "" : fmt::format(" from rank {}", head.root);
  const Operation operation{.number = head.number,
                            .sequence = head.sequence,
                            .kind = head.kind,
                            .dtype = head.dtype,
                            .name = head.name,
                            .bytes = head.bytes,
                            .begun_ns = 0,
                            .done_ns = 0,
                            .parts = head.parts};
  return fmt::format("{}{}{}{}", describe(operation), type, manner_of(head), root);
}

std::unique_ptr<TcpOperation> tcp_barrier(const OperationHead& head) {
  return std::make_unique<TcpBarrier>(head);
}

std::unique_ptr<TcpOperation> tcp_gather(const OperationHead& head, TcpPlace place,
                                         std::vector<std::vector<std::byte>>& parts) {
  return std::make_unique<TcpGather>(head, place, parts);
}

std::unique_ptr<TcpOperation> tcp_broadcast(const OperationHead& head, TcpPlace place,
                                            std::span<std::byte> data) {
  return std::make_unique<TcpBroadcast>(head, place, data);
}

std::unique_ptr<TcpOperation> tcp_along(const OperationHead& head, TcpRoutes routes) {
  return std::make_unique<TcpAlongRoutes>(head, std::move(routes));
}

std::unique_ptr<TcpOperation> tcp_transfer(const OperationHead& head, std::size_t peer,
                                           std::span<std::byte> data) {
  return std::make_unique<TcpTransfer>(head, peer, data);
}

}  // namespace ddprun::worker
