#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "worker/collective/kernels/bfloat16_kernels.h"
#include "worker/collective/kernels/reduce_kernels.h"
#include "worker/collective/kernels/ring_pieces.h"
#include "worker/collective/tcp/tcp_operation.h"
#include "worker/collective/tcp/tcp_row.h"

namespace ddprun::worker {
namespace {

// Small steps stay in a second-level cache; each costs a call of the kernel.
constexpr std::size_t kStepBytes = std::size_t{256} << 10;

// The bfloat16 that travel in place of float32 values.
class NarrowFeed final : public TcpFeed {
 public:
  NarrowFeed(std::span<float> values, TcpScratch& scratch, std::unique_ptr<TcpFeed> of_values)
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

std::vector<RingPiece> pieces_of(const TcpShared& shared, std::size_t element, TcpPlace place) {
  const std::size_t bytes = shared.data.size();
  return shared.request.sharing == Sharing::kAllReduce
             ? ring_pieces(bytes, element, place.ranks)
             : ring_pieces(bytes, element, place.ranks, shared.request.parts);
}

class TcpReduce final : public TcpOperation {
 public:
  TcpReduce(const OperationHead& head, TcpPlace place, TcpShared shared, TcpScratch& scratch)
      : TcpOperation(head),
        place_(place),
        element_(size_of(head.dtype)),
        gives_results_(shared.request.sharing == Sharing::kAllReduce),
        data_(shared.data),
        scratch_(scratch),
        feed_(std::move(shared.feed)) {
    const auto pieces = pieces_of(shared, element_, place);
    for (std::size_t rank = 0; rank < place.ranks; ++rank) {
      peers_.push_back({.row = TcpRow(pieces, rank)});
      if (rank != place.rank) make_some(peers_[rank]);
    }
    window_bytes_ = std::min(kWindowBytes, mine().size());
  }

  // First the peer's elements as they are here. Then the results of our own, as far as they are
  // made.
  std::span<const std::byte> to_send(std::size_t peer) const override {
    const Peer& to = peers_[peer];
    if (to.sent < to.row.size()) return first_of(to.row.from(to.sent), to.made - to.sent);
    const std::size_t done = to.sent - to.row.size();
    if (!gives_results_) return {};
    return first_of(mine().from(done), reduced_ - done);
  }
  void sent(std::size_t peer, std::size_t bytes) override {
    peers_[peer].sent += bytes;
    make_some(peers_[peer]);
  }
  bool all_sent(std::size_t peer) const override {
    return peers_[peer].sent == peers_[peer].row.size() + results_of(place_.rank);
  }

  // First the peer's elements of our pieces. Then the results of the peer's: over ours, which the
  // peer has.
  std::span<std::byte> to_receive(std::size_t peer) override {
    const Peer& from = peers_[peer];
    if (from.received >= mine().size()) {
      if (!gives_results_) return {};
      const RingPiece piece = from.row.from(from.received - mine().size());
      return first_of(piece, piece.size());
    }
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
    return peers_[peer].received == mine().size() + results_of(peer);
  }

  bool owes(std::size_t peer) const override { return peers_[peer].received < mine().size(); }

 private:
  struct Peer {
    TcpRow row;
    std::size_t sent = 0;
    std::size_t received = 0;
    std::size_t made = 0;   // bytes of the row that are there to send
    std::size_t taken = 0;  // bytes of the row's results that are in place
  };

  // The next bytes for a peer, where all that were made are sent.
  void make_some(Peer& to) {
    if (to.sent < to.made || to.made == to.row.size()) return;
    if (!feed_) {
      to.made = to.row.size();
      return;
    }
    const RingPiece piece = to.row.from(to.made);
    const std::size_t bytes = std::min(kStepBytes, piece.size());
    make(piece.bytes.begin, piece.bytes.begin + bytes);
    to.made += bytes;
  }
  // A peer's result is in place, as far as whole elements have come.
  void take_some(Peer& from) {
    const std::size_t come = from.received - mine().size();
    const std::size_t end = come - come % element_;
    while (from.taken < end) {
      const RingPiece piece = from.row.from(from.taken);
      const std::size_t bytes = std::min(end - from.taken, piece.size());
      take(piece.bytes.begin, piece.bytes.begin + bytes);
      from.taken += bytes;
    }
  }
  // Bounds in data_, of whole elements.
  void make(std::size_t begin, std::size_t end) {
    if (feed_) feed_->make(begin / element_, end / element_);
  }
  void take(std::size_t begin, std::size_t end) {
    if (feed_) feed_->take(begin / element_, end / element_);
  }

  std::span<std::byte> first_of(const RingPiece& piece, std::size_t bytes_max) const {
    return data_.subspan(piece.bytes.begin, std::min(piece.size(), bytes_max));
  }
  const TcpRow& mine() const { return peers_[place_.rank].row; }
  // The bytes of results that a rank gives to each other one.
  std::size_t results_of(std::size_t rank) const {
    return gives_results_ ? peers_[rank].row.size() : 0;
  }
  std::byte* window(std::size_t peer) {
    if (windows_.data() == nullptr) windows_ = scratch_.take(window_bytes_ * place_.ranks);
    return windows_.data() + peer * window_bytes_;
  }

  // Reduces what all peers have sent: whole steps, and the end of the row.
  void reduce() {
    std::size_t ready = mine().size();
    for (std::size_t peer = 0; peer < place_.ranks; ++peer)
      if (peer != place_.rank) ready = std::min(ready, peers_[peer].received);
    if (ready != mine().size()) ready -= ready % kStepBytes;
    while (reduced_ < ready) {
      const std::size_t begin = reduced_ % window_bytes_;
      RingPiece piece = mine().from(reduced_);
      const std::size_t bytes =
          std::min({ready - reduced_, kStepBytes, window_bytes_ - begin, piece.size()});
      piece.bytes.end = piece.bytes.begin + bytes;
      reduce(piece, begin);
      reduced_ += bytes;
    }
  }
  // Those of rank `first` come first, then those of the next ranks in a circle: the order of
  // ring_order.h.
  void reduce(const RingPiece& piece, std::size_t window_begin) {
    const auto [begin, end] = piece.bytes;
    make(begin, end);
    std::byte* const own = data_.data() + begin;
    std::vector<std::byte*> buffers(place_.ranks);
    for (std::size_t k = 0; k < buffers.size(); ++k) {
      const std::size_t rank = (piece.first + k) % place_.ranks;
      buffers[k] = rank == place_.rank ? own : window(rank) + window_begin;
    }
    reduce_to_one(own, buffers, piece.size() / element_, head().dtype, head().reduction);
    take(begin, end);
  }

  TcpPlace place_;
  std::size_t element_;        // bytes
  bool gives_results_;         // to all other ranks
  std::span<std::byte> data_;  // what travels
  TcpScratch& scratch_;
  std::unique_ptr<TcpFeed> feed_;
  std::vector<Peer> peers_;  // by rank; of this rank only `row` is used
  std::size_t window_bytes_ = 0;
  // One a rank: what came of our row and is not reduced yet. The own one is never touched.
  TcpScratch::Block windows_;
  std::size_t reduced_ = 0;  // bytes of our row
};

}  // namespace

std::unique_ptr<TcpOperation> tcp_reduce(const OperationHead& head, TcpPlace place,
                                         TcpShared shared, TcpScratch& scratch) {
  return std::make_unique<TcpReduce>(head, place, std::move(shared), scratch);
}

std::unique_ptr<TcpOperation> tcp_reduce_as_bfloat16(const OperationHead& head, TcpPlace place,
                                                     TcpShared shared, TcpScratch& scratch) {
  const std::span values(reinterpret_cast<float*>(shared.data.data()),
                         shared.data.size() / sizeof(float));
  auto narrowed = std::make_unique<NarrowFeed>(values, scratch, std::move(shared.feed));
  shared.data = narrowed->bytes();
  shared.feed = std::move(narrowed);
  return std::make_unique<TcpReduce>(head, place, std::move(shared), scratch);
}

}  // namespace ddprun::worker
