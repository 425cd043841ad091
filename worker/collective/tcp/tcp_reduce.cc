#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "worker/collective/kernels/bfloat16_kernels.h"
#include "worker/collective/kernels/reduce_kernels.h"
#include "worker/collective/kernels/ring_order.h"
#include "worker/collective/tcp/tcp_operation.h"

namespace ddprun::worker {
namespace {

// Small steps stay in a second-level cache; each costs a call of the kernel.
constexpr std::size_t kStepBytes = std::size_t{256} << 10;

// The bfloat16 that travel in place of float32 values.
class Narrowed final : public TcpFeed {
 public:
  Narrowed(std::span<float> values, TcpScratch& scratch, std::unique_ptr<TcpFeed> of_values)
      : values_(values),
        memory_(scratch.take(values.size() * sizeof(std::uint16_t))),
        of_values_(std::move(of_values)) {}

  std::span<std::byte> bytes() const {
    return {memory_.data(), values_.size() * sizeof(std::uint16_t)};
  }
  void make(std::size_t begin, std::size_t end) override {
    if (of_values_) of_values_->make(begin, end);
    to_bfloat16(values_.subspan(begin, end - begin), elements(begin, end));
  }
  void take(std::size_t begin, std::size_t end) override {
    from_bfloat16(elements(begin, end), values_.subspan(begin, end - begin));
    if (of_values_) of_values_->take(begin, end);
  }

 private:
  std::span<std::uint16_t> elements(std::size_t begin, std::size_t end) const {
    return {reinterpret_cast<std::uint16_t*>(memory_.data()) + begin, end - begin};
  }

  std::span<float> values_;
  TcpScratch::Block memory_;
  std::unique_ptr<TcpFeed> of_values_;
};

class TcpReduce final : public TcpOperation {
 public:
  TcpReduce(const OperationHead& head, TcpPlace place, std::span<std::byte> data,
            TcpScratch& scratch, std::unique_ptr<TcpFeed> feed)
      : TcpOperation(head),
        place_(place),
        element_(size_of(head.dtype)),
        data_(data),
        scratch_(scratch),
        feed_(std::move(feed)),
        peers_(place.ranks) {
    for (std::size_t rank = 0; rank < place.ranks; ++rank) {
      peers_[rank].chunk = ring_chunk(data_.size(), element_, place.ranks, rank);
      if (rank != place.rank) make_some(peers_[rank]);
    }
    window_bytes_ = std::min(kWindowBytes, mine().size());
  }

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

  // First the peer's elements of our chunk. Then the result of the peer's: over ours, which the
  // peer has.
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
      take_some(peers_[peer]);
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
    std::size_t made = 0;   // bytes of the chunk that are there to send
    std::size_t taken = 0;  // bytes of the chunk's result that are in place
  };

  // The next bytes for a peer, where all that were made are sent.
  void make_some(Peer& to) {
    const std::size_t size = to.chunk.end - to.chunk.begin;
    if (to.sent < to.made || to.made == size) return;
    const std::size_t end = feed_ ? std::min(to.made + kStepBytes, size) : size;
    make(to.chunk.begin + to.made, to.chunk.begin + end);
    to.made = end;
  }
  // A peer's result is in place, as far as whole elements have come.
  void take_some(Peer& from) {
    const std::size_t come = from.received - mine().size();
    const std::size_t end = come - come % element_;
    take(from.chunk.begin + from.taken, from.chunk.begin + end);
    from.taken = end;
  }
  // Bounds in data_, of whole elements.
  void make(std::size_t begin, std::size_t end) {
    if (feed_) feed_->make(begin / element_, end / element_);
  }
  void take(std::size_t begin, std::size_t end) {
    if (feed_) feed_->take(begin / element_, end / element_);
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
      make(own, own + bytes);
      // Own elements first, then those of the next ranks in a circle: the order of ring_order.h.
      std::vector<std::byte*> buffers(place_.ranks);
      for (std::size_t k = 0; k < buffers.size(); ++k) {
        const std::size_t rank = (place_.rank + k) % place_.ranks;
        buffers[k] = k == 0 ? mine().data() + reduced_ : window(rank) + begin;
      }
      reduce_to_first(buffers, bytes / element_, head().dtype, head().reduction);
      take(own, own + bytes);
      reduced_ += bytes;
    }
  }

  TcpPlace place_;
  std::size_t element_;        // bytes
  std::span<std::byte> data_;  // what travels
  TcpScratch& scratch_;
  std::unique_ptr<TcpFeed> feed_;
  std::vector<Peer> peers_;  // by rank; of this rank only `chunk` is used
  std::size_t window_bytes_ = 0;
  // One a rank: what came of our chunk and is not reduced yet. The own one is never touched.
  TcpScratch::Block windows_;
  std::size_t reduced_ = 0;  // bytes of our chunk
};

}  // namespace

std::unique_ptr<TcpOperation> tcp_reduce(const OperationHead& head, TcpPlace place,
                                         std::span<std::byte> data, TcpScratch& scratch,
                                         std::unique_ptr<TcpFeed> feed) {
  return std::make_unique<TcpReduce>(head, place, data, scratch, std::move(feed));
}

std::unique_ptr<TcpOperation> tcp_reduce_as_bfloat16(const OperationHead& head, TcpPlace place,
                                                     std::span<float> values, TcpScratch& scratch,
                                                     std::unique_ptr<TcpFeed> feed) {
  auto narrowed = std::make_unique<Narrowed>(values, scratch, std::move(feed));
  const auto bytes = narrowed->bytes();
  return std::make_unique<TcpReduce>(head, place, bytes, scratch, std::move(narrowed));
}

}  // namespace ddprun::worker
