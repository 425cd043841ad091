#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "worker/kernels/bfloat16_kernels.h"
#include "worker/kernels/reduce_kernels.h"
#include "worker/kernels/ring_order.h"
#include "worker/tcp/tcp_operation.h"

namespace ddprun::worker {
namespace {

// Small steps stay in a second-level cache; each costs a call of the kernel.
constexpr std::size_t kStepBytes = std::size_t{64} << 10;

// The bfloat16 that travel in place of float32 values.
class Narrowed {
 public:
  Narrowed(std::span<float> values, TcpScratch& scratch)
      : values_(values), memory_(scratch.take(values.size() * sizeof(std::uint16_t))) {}

  std::span<std::byte> bytes() const {
    return {memory_.data(), values_.size() * sizeof(std::uint16_t)};
  }
  // Bounds in bytes(), of whole elements.
  void make(std::size_t begin, std::size_t end) const {
    to_bfloat16(values(begin, end), elements(begin, end));
  }
  void read(std::size_t begin, std::size_t end) const {
    from_bfloat16(elements(begin, end), values(begin, end));
  }

 private:
  static constexpr std::size_t kSize = sizeof(std::uint16_t);

  std::span<float> values(std::size_t begin, std::size_t end) const {
    return values_.subspan(begin / kSize, end / kSize - begin / kSize);
  }
  std::span<std::uint16_t> elements(std::size_t begin, std::size_t end) const {
    auto* all = reinterpret_cast<std::uint16_t*>(memory_.data());
    return {all + begin / kSize, end / kSize - begin / kSize};
  }

  std::span<float> values_;
  TcpScratch::Block memory_;
};

class TcpReduce final : public TcpOperation {
 public:
  TcpReduce(const OperationHead& head, TcpPlace place, std::span<std::byte> data,
            TcpScratch& scratch)
      : TcpReduce(head, place, data, scratch, std::nullopt) {}
  TcpReduce(const OperationHead& head, TcpPlace place, Narrowed narrowed, TcpScratch& scratch)
      : TcpReduce(head, place, {}, scratch, std::move(narrowed)) {}

  // First the peer's chunk as it is here. Then the result of our own, as far as it is made.
  std::span<const std::byte> to_send(std::size_t peer) const override {
    const Peer& to = peers_[peer];
    const auto theirs = part(to.chunk);
    if (to.sent < theirs.size()) return theirs.subspan(to.sent, to.made - to.sent);
    const std::size_t done = to.sent - theirs.size();
    return mine().subspan(done, reduced_ - done);
  }
  void sent(std::size_t peer, std::size_t bytes) override {
    peers_[peer].sent += bytes;
    make_some(peers_[peer]);
  }
  bool all_sent(std::size_t peer) const override {
    return peers_[peer].sent == part(peers_[peer].chunk).size() + mine().size();
  }

  // First the peer's elements of our chunk. Then the result of the peer's: over ours, which the peer has.
  std::span<std::byte> to_receive(std::size_t peer) override {
    const Peer& from = peers_[peer];
    if (from.received >= mine().size())
      return part(from.chunk).subspan(from.received - mine().size());
    const std::size_t begin = from.received % window_bytes_;
    const std::size_t end =
        std::min({window_bytes_, begin + reduced_ + window_bytes_ - from.received,
                  begin + mine().size() - from.received});
    return {window(peer) + begin, end - begin};
  }
  void received(std::size_t peer, std::size_t bytes) override {
    const bool elements = peers_[peer].received < mine().size();
    peers_[peer].received += bytes;
    if (elements) {
      reduce();
    } else {
      read_some(peers_[peer]);
    }
  }
  bool all_received(std::size_t peer) const override {
    return peers_[peer].received == mine().size() + part(peers_[peer].chunk).size();
  }

  bool owes(std::size_t peer) const override { return peers_[peer].received < mine().size(); }

 private:
  struct Peer {
    Chunk chunk;
    std::size_t sent = 0;
    std::size_t received = 0;
    std::size_t made = 0;  // bytes of the chunk that are there to send
    std::size_t read = 0;  // bytes of the chunk's result that are in place
  };

  TcpReduce(const OperationHead& head, TcpPlace place, std::span<std::byte> data,
            TcpScratch& scratch, std::optional<Narrowed> narrowed)
      : TcpOperation(head),
        place_(place),
        narrowed_(std::move(narrowed)),
        data_(narrowed_ ? narrowed_->bytes() : data),
        scratch_(scratch),
        peers_(place.ranks) {
    for (std::size_t rank = 0; rank < place.ranks; ++rank) {
      peers_[rank].chunk = ring_chunk(data_.size(), size_of(head.dtype), place.ranks, rank);
      if (rank != place.rank) make_some(peers_[rank]);
    }
    window_bytes_ = std::min(kWindowBytes, mine().size());
  }

  // The next bytes for a peer, where all that were made are sent.
  void make_some(Peer& to) {
    const std::size_t size = to.chunk.end - to.chunk.begin;
    if (to.sent < to.made || to.made == size) return;
    const std::size_t end = narrowed_ ? std::min(to.made + kStepBytes, size) : size;
    if (narrowed_) narrowed_->make(to.chunk.begin + to.made, to.chunk.begin + end);
    to.made = end;
  }
  // Puts a peer's result in place, as far as whole elements have come.
  void read_some(Peer& from) {
    if (!narrowed_) return;
    const std::size_t come = from.received - mine().size();
    const std::size_t end = come - come % size_of(head().dtype);
    narrowed_->read(from.chunk.begin + from.read, from.chunk.begin + end);
    from.read = end;
  }

  std::span<std::byte> part(Chunk chunk) const {
    return data_.subspan(chunk.begin, chunk.end - chunk.begin);
  }
  std::span<std::byte> mine() const { return part(peers_[place_.rank].chunk); }
  std::byte* window(std::size_t peer) {
    if (windows_.data() == nullptr) windows_ = scratch_.take(window_bytes_ * place_.ranks);
    return windows_.data() + peer * window_bytes_;
  }

  // Reduces what all peers have sent: whole steps, and the end of the chunk.
  void reduce() {
    std::size_t ready = mine().size();
    for (std::size_t peer = 0; peer < place_.ranks; ++peer)
      if (peer != place_.rank) ready = std::min(ready, peers_[peer].received);
    if (ready != mine().size()) ready -= ready % kStepBytes;
    while (reduced_ < ready) {
      const std::size_t begin = reduced_ % window_bytes_;
      const std::size_t bytes = std::min({ready - reduced_, kStepBytes, window_bytes_ - begin});
      const std::size_t own = peers_[place_.rank].chunk.begin + reduced_;
      if (narrowed_) narrowed_->make(own, own + bytes);
      // Own elements first, then those of the next ranks in a circle: the order of ring_order.h.
      std::vector<std::byte*> buffers(place_.ranks);
      for (std::size_t k = 0; k < buffers.size(); ++k) {
        const std::size_t rank = (place_.rank + k) % place_.ranks;
        buffers[k] = k == 0 ? mine().data() + reduced_ : window(rank) + begin;
      }
      reduce_to_first(buffers, bytes / size_of(head().dtype), head().dtype, head().reduction);
      if (narrowed_) narrowed_->read(own, own + bytes);
      reduced_ += bytes;
    }
  }

  TcpPlace place_;
  std::optional<Narrowed> narrowed_;
  std::span<std::byte> data_;  // what travels
  TcpScratch& scratch_;
  std::vector<Peer> peers_;  // by rank; of this rank only `chunk` is used
  std::size_t window_bytes_ = 0;
  // One a rank: what came of our chunk and is not reduced yet. The own one is never touched.
  TcpScratch::Block windows_;
  std::size_t reduced_ = 0;  // bytes of our chunk
};

}  // namespace

std::unique_ptr<TcpOperation> tcp_reduce(const OperationHead& head, TcpPlace place,
                                         std::span<std::byte> data, TcpScratch& scratch) {
  return std::make_unique<TcpReduce>(head, place, data, scratch);
}

std::unique_ptr<TcpOperation> tcp_reduce_as_bfloat16(const OperationHead& head, TcpPlace place,
                                                     std::span<float> values, TcpScratch& scratch) {
  return std::make_unique<TcpReduce>(head, place, Narrowed(values, scratch), scratch);
}

}  // namespace ddprun::worker
