// One operation of a rank over TCP. It knows which bytes go to which peer, and the place of a
// peer's bytes. Pure: it moves nothing itself. tcp_link.h moves the bytes and tells it how many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "worker/collective/core/parts.h"
#include "worker/collective/tcp/tcp_feed.h"
#include "worker/collective/tcp/tcp_frames.h"
#include "worker/collective/tcp/tcp_routes.h"
#include "worker/collective/tcp/tcp_scratch.h"

namespace ddprun::worker {

class TcpOperation {
 public:
  explicit TcpOperation(const OperationHead& head) : head_(head) {}
  TcpOperation(const TcpOperation&) = delete;
  TcpOperation& operator=(const TcpOperation&) = delete;
  TcpOperation(TcpOperation&&) = delete;
  TcpOperation& operator=(TcpOperation&&) = delete;
  virtual ~TcpOperation() = default;

  const OperationHead& head() const { return head_; }

  // Returns whether that peer has a part in it. Only then the two exchange heads.
  virtual bool involves(std::size_t /*peer*/) const { return true; }

  // The peer's head came. False if it does something else.
  virtual bool meet(std::size_t /*peer*/, const OperationHead& theirs);

  // The next bytes for that peer that are ready, in one piece. They stay ready until they are sent.
  virtual std::span<const std::byte> to_send(std::size_t peer) const = 0;
  virtual void sent(std::size_t peer, std::size_t bytes) = 0;
  virtual bool all_sent(std::size_t peer) const = 0;

  // Returns the place of the next bytes from that peer. Empty if there is no place yet, or all have
  // come.
  virtual std::span<std::byte> to_receive(std::size_t peer) = 0;
  virtual void received(std::size_t peer, std::size_t bytes) = 0;
  virtual bool all_received(std::size_t peer) const = 0;
  // Returns whether that peer owes bytes that it can send without anybody else's.
  virtual bool owes(std::size_t peer) const { return !all_received(peer); }

 private:
  OperationHead head_;
};

// "sum of 4096 bytes (operation 12)".
std::string describe(const OperationHead& head);

// The place of a rank among all.
struct TcpPlace {
  std::size_t rank = 0;
  std::size_t ranks = 1;
};

// Heads only: each rank sends one to every other.
std::unique_ptr<TcpOperation> tcp_barrier(const OperationHead& head);

// Every rank gets all parts, in `parts`, by rank. The own part is there already. `parts` must
// outlive it.
std::unique_ptr<TcpOperation> tcp_gather(const OperationHead& head, TcpPlace place,
                                         std::vector<std::vector<std::byte>>& parts);

// Root gives each rank one chunk, and the ranks give their chunks to each other as they come. So
// root sends all of it twice, not once for each rank.
std::unique_ptr<TcpOperation> tcp_broadcast(const OperationHead& head, TcpPlace place,
                                            std::span<std::byte> data);

// `head.kind` says in which direction.
std::unique_ptr<TcpOperation> tcp_transfer(const OperationHead& head, std::size_t peer,
                                           std::span<std::byte> data);

// The elements of an all-reduce or a reduce-scatter. `feed` makes the elements in
// `data`, and takes results. Null if they are there, and stay there.
struct TcpShared {
  std::span<std::byte> data;
  LaunchRequest request;
  std::unique_ptr<TcpFeed> feed = nullptr;
};

// All-reduce and reduce-scatter. Each rank reduces the pieces that it owns (ring_pieces.h): each
// other rank sends it those. In an all-reduce rank r owns chunk r, and sends the result to each. So
// the bits are those of Gloo's ring. The other ranks' elements wait in a window of at most
// kWindowBytes a rank. The window comes from `scratch` once the operation is under way. `scratch`
// must outlive it.
std::unique_ptr<TcpOperation> tcp_reduce(const OperationHead& head, TcpPlace place,
                                         TcpShared shared, TcpScratch& scratch);

// The same for float32 elements that travel as bfloat16; `head` describes what travels. `data` is
// those float32. Each element is rounded, the sum is made in float32 and rounded once. The bfloat16
// are made and read piece by piece, when they are sent and received. So they are in a cache, not in
// memory.
std::unique_ptr<TcpOperation> tcp_reduce_as_bfloat16(const OperationHead& head, TcpPlace place,
                                                     TcpShared shared, TcpScratch& scratch);

// All-gather and all-to-all: each rank sends to each other what its routes say.
std::unique_ptr<TcpOperation> tcp_along(const OperationHead& head, TcpRoutes routes);

inline constexpr std::size_t kWindowBytes = std::size_t{1} << 20;

}  // namespace ddprun::worker
