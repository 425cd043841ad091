#include "worker/collective/hierarchical/hierarchical_collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "worker/collective/core/flight_record.h"
#include "worker/collective/core/operation_ring.h"
#include "worker/collective/core/parts.h"
#include "worker/collective/core/reached.h"
#include "worker/collective/kernels/copy_kernels.h"
#include "worker/collective/kernels/reduce_kernels.h"
#include "worker/collective/tcp/tcp_memory.h"

namespace ddprun::worker {
namespace {

// The parts of a chunk, counted from its begin. `owner_of` says who owns a part there. Nothing if
// it is left out.
std::vector<Part> parts_in(const OwnedChunk& chunk, std::span<const Part> parts,
                           const std::function<std::optional<int>(int owner)>& owner_of) {
  std::vector<Part> inside;
  for (const Part& part : parts) {
    const auto owner = owner_of(part.owner);
    const std::size_t begin = std::max(part.begin, chunk.begin);
    const std::size_t end = std::min(part.end, chunk.begin + chunk.count);
    if (owner && begin < end) inside.push_back({*owner, begin - chunk.begin, end - chunk.begin});
  }
  return inside;
}

std::vector<std::byte*> buffers_from(const OwnedChunk& chunk, std::size_t element) {
  std::vector<std::byte*> buffers = chunk.buffers;
  for (std::byte*& buffer : buffers) buffer += element * size_of(chunk.dtype);
  return buffers;
}

// This rank's chunk of a host's sum, on its way over TCP. The ranks of the host are added just
// before it travels, and get the result as it comes.
class HostFeed : public TcpFeed {
 public:
  HostFeed(OwnedChunk chunk, Reduction reduction)
      : chunk_(std::move(chunk)), reduction_(reduction) {}

  void make(std::size_t begin, std::size_t end) override {
    const auto buffers = buffers_from(chunk_, begin);
    reduce_to_one(buffers[0], buffers, end - begin, chunk_.dtype, reduction_);
  }
  void take(std::size_t begin, std::size_t end) override {
    copy_first_to_all(buffers_from(chunk_, begin), bytes(begin, end));
  }

 protected:
  const OwnedChunk& chunk() const { return chunk_; }
  std::size_t bytes(std::size_t begin, std::size_t end) const {
    return (end - begin) * size_of(chunk_.dtype);
  }

 private:
  OwnedChunk chunk_;
  Reduction reduction_;
};

// The same in a reduce-scatter: the owner alone gets the result.
class HostPartsFeed final : public HostFeed {
 public:
  // `parts`: those of the chunk that this host's ranks own. An owner is a place among the chunk's
  // buffers.
  HostPartsFeed(OwnedChunk chunk, Reduction reduction, std::vector<Part> parts)
      : HostFeed(std::move(chunk), reduction), parts_(std::move(parts)) {}

  void take(std::size_t begin, std::size_t end) override {
    auto part = std::ranges::upper_bound(parts_, begin, {}, &Part::end);
    for (; part != parts_.end() && part->begin < end; ++part) {
      const std::size_t from = std::max(begin, part->begin);
      const auto buffers = buffers_from(chunk(), from);
      std::byte* const owner = buffers[static_cast<std::size_t>(part->owner)];
      if (owner != buffers[0])
        std::memcpy(owner, buffers[0], bytes(from, std::min(end, part->end)));
    }
  }

 private:
  std::vector<Part> parts_;
};

// Sums and barriers are composed. Other operations are those of all ranks over TCP, once all are
// known to do the same. Broadcasts, which are large, go to one rank of each host first.
class HierarchicalCollective final : public Collective {
 public:
  explicit HierarchicalCollective(HierarchicalParts parts)
      : parts_(std::move(parts)), timeout_(parts_.timeout) {
    DDPRUN_ASSERT(parts_.all->world_size() ==
                  parts_.host->world_size() * parts_.peers->world_size());
  }

  int rank() const override { return parts_.all->rank(); }
  int world_size() const override { return parts_.all->world_size(); }
  Device device() const override { return Device::kCpu; }
  std::string_view name() const override { return "hierarchical"; }

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    auto memory = parts_.host->allocate(bytes);
    parts_.peers->adopt(memory, bytes);
    memory_.adopt(memory, bytes);
    return memory;
  }

  Ticket launch(Flat flat, Reduction reduction) override {
    return launch(flat, all_reduce_of(reduction));
  }
  Ticket launch_reduce_scatter(Flat flat, std::span<const Part> parts,
                               Reduction reduction) override {
    return launch(flat, reduce_scatter_of(flat, parts, reduction, world_size()));
  }
  Ticket launch_all_gather(Flat flat, std::span<const Part> parts) override {
    return launch(flat, all_gather_of(flat, parts, world_size()));
  }
  Ticket launch_all_to_all(Flat flat, std::span<const Transfer> transfers) override {
    return launch(flat, all_to_all_of(flat, transfers, world_size()));
  }
  void progress() override;
  void wait(Ticket ticket) override;
  void broadcast(Flat flat, int root) override;
  std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> mine) override {
    const Doing doing(*this, OperationKind::kGather, mine.size());
    meet(doing.number());
    return parts_.all->all_gather_bytes(mine);
  }
  void barrier() override {
    const Doing doing(*this, OperationKind::kBarrier, 0);
    meet(doing.number());
  }
  // Waits for no sum: it has links of its own, and shall name all that are late.
  void monitored_barrier(std::chrono::milliseconds limit) override {
    const std::uint32_t number = ring_->begin(OperationKind::kBarrier, 0);
    parts_.all->monitored_barrier(limit);
    ring_->end(number);
  }
  void send(Flat flat, int to) override {
    other_rank(to);
    const Doing doing(*this, OperationKind::kSend, flat.bytes());
    if (on_this_host(to)) return parts_.host->send(flat, to % parts_.host->world_size());
    parts_.all->send(flat, to);
  }
  void receive(Flat flat, int from) override {
    other_rank(from);
    const Doing doing(*this, OperationKind::kReceive, flat.bytes());
    if (on_this_host(from)) return parts_.host->receive(flat, from % parts_.host->world_size());
    parts_.all->receive(flat, from);
  }
  std::unique_ptr<Collective> split(int color, int key) override {
    const Doing doing(*this, OperationKind::kGather, 0);
    meet(doing.number());
    return parts_.all->split(color, key);
  }
  // A rank that waits for its host does not hear the other hosts, nor the other way round.
  void reset() override {
    throw CollectiveError("reset: not with several hosts of several ranks each: end the program");
  }
  std::string flight_record() const override {
    return worker::flight_record(
        *ring_, {.collective = name(), .rank = rank(), .ranks = world_size(), .timeout = timeout_});
  }

 private:
  // An operation of this rank, from its begin to its end. It comes after the sums that were
  // launched before.
  class Doing {
   public:
    Doing(HierarchicalCollective& ranks, OperationKind kind, std::uint64_t bytes)
        : ring_(*ranks.ring_) {
      ranks.wait(ranks.launched_);
      number_ = ring_.begin(kind, bytes);
    }
    Doing(const Doing&) = delete;
    Doing& operator=(const Doing&) = delete;
    Doing(Doing&&) = delete;
    Doing& operator=(Doing&&) = delete;
    // One that has thrown is not done.
    ~Doing() {
      if (std::uncaught_exceptions() == exceptions_) ring_.end(number_);
    }
    std::uint32_t number() const { return number_; }

   private:
    OperationRing& ring_;
    int exceptions_ = std::uncaught_exceptions();
    std::uint32_t number_ = 0;
  };
  struct Sum {
    std::shared_ptr<std::byte> memory;  // that its elements lie in
    Flat flat;
    LaunchRequest request;
    std::uint32_t number;  // in ring_
    Ticket on_host;
    Ticket among_hosts = 0;
    OwnedChunk chunk = {};         // of an all-gather: the whole
    std::vector<Part> gives = {};  // of it: what this rank gets from other hosts, for its own
  };
  Ticket launch(const Flat& flat, LaunchRequest request);
  int host_of(int rank) const { return rank / parts_.host->world_size(); }
  int local_rank_of(int rank) const { return rank % parts_.host->world_size(); }
  Ticket reduce_among_hosts(const Sum& sum, OwnedChunk chunk);
  Ticket gather_among_hosts(Sum& sum, OwnedChunk chunk);
  Ticket send_among_hosts(const Sum& sum, const OwnedChunk& chunk);

  bool on_this_host(int rank) const { return host_of(rank) == parts_.peers->rank(); }
  // The next step of a rank.
  struct NextStep {
    Operation operation;
    std::int32_t root;
  };
  void meet(std::uint32_t number, int root = -1);
  void go_among_hosts();
  void note_added();

  HierarchicalParts parts_;
  std::chrono::milliseconds timeout_;
  std::unique_ptr<OperationRing> ring_ = std::make_unique<OperationRing>();
  TcpMemory memory_;             // what allocate() has given out
  std::deque<Sum> sums_;         // launched and not complete
  std::size_t among_hosts_ = 0;  // of sums_, from the front: those that the hosts add
  std::size_t added_ = 0;        // … and those whose chunk this rank's host has
  Ticket launched_ = 0;
  Ticket done_ = 0;
};

// Ranks of this host that do different things meet in shared memory, here at the latest. Then those
// of different hosts meet on a link.
void HierarchicalCollective::meet(std::uint32_t number, int root) {
  const NextStep mine{ring_->find(number).value_or(Operation{}), root};
  const auto all = parts_.host->gather_for(mine.operation.kind, std::as_bytes(std::span(&mine, 1)));
  for (std::size_t local = 0; local < all.size(); ++local) {
    NextStep theirs{};
    if (all[local].size() == sizeof theirs) std::memcpy(&theirs, all[local].data(), sizeof theirs);
    if (theirs.operation.kind == mine.operation.kind && theirs.root == root) continue;
    throw CollectiveError(
        fmt::format("rank {} does {}, local rank {} of its host does {}: they do different things",
                    rank(), describe(mine.operation), local, describe(theirs.operation)));
  }
  parts_.peers->meet(mine.operation.kind, root);
}

Ticket HierarchicalCollective::launch(const Flat& flat, LaunchRequest request) {
  if (sums_.size() >= kLaunchedMax) wait(done_ + 1);
  const std::uint32_t number =
      ring_->begin(request.kind(), flat.bytes(), flat.dtype, flat.name, request.hash());
  const Ticket on_host = parts_.host->launch_chunks(flat, request);
  sums_.push_back({.memory = memory_.hold(flat),
                   .flat = flat,
                   .request = std::move(request),
                   .number = number,
                   .on_host = on_host});
  return ++launched_;
}

void HierarchicalCollective::go_among_hosts() {
  Sum& sum = sums_[among_hosts_++];
  OwnedChunk chunk = parts_.host->owned_chunk(sum.on_host);
  switch (sum.request.sharing) {
    case Sharing::kAllGather:
      sum.among_hosts = gather_among_hosts(sum, std::move(chunk));
      return;
    case Sharing::kAllToAll:
      sum.among_hosts = send_among_hosts(sum, chunk);
      return;
    case Sharing::kAllReduce:
    case Sharing::kReduceScatter:
      sum.among_hosts = reduce_among_hosts(sum, std::move(chunk));
  }
}

// The hosts add the next sum: this rank's chunk. All hosts have as many ranks, so the average of
// their averages is that of all.
Ticket HierarchicalCollective::reduce_among_hosts(const Sum& sum, OwnedChunk chunk) {
  const Flat flat{chunk.buffers.front(), chunk.count, chunk.dtype, sum.flat.name};
  LaunchRequest request = sum.request;
  const Reduction reduction = request.reduction;
  if (request.sharing == Sharing::kAllReduce) {
    auto feed = std::make_unique<HostFeed>(std::move(chunk), reduction);
    return parts_.peers->launch(flat, std::move(request), std::move(feed));
  }
  const int ranks = parts_.host->world_size();
  auto here = parts_in(chunk, sum.request.parts, [&](int owner) -> std::optional<int> {
    if (!on_this_host(owner)) return std::nullopt;
    return (local_rank_of(owner) + ranks - parts_.host->rank()) % ranks;
  });
  request.parts = parts_in(chunk, sum.request.parts, [&](int owner) { return host_of(owner); });
  auto feed = std::make_unique<HostPartsFeed>(std::move(chunk), reduction, std::move(here));
  return parts_.peers->launch(flat, std::move(request), std::move(feed));
}

// Each rank gets the parts of those with its local rank, and gives them to its host.
Ticket HierarchicalCollective::gather_among_hosts(Sum& sum, OwnedChunk chunk) {
  const int local_rank = parts_.host->rank();
  const auto gives = [&](int owner) { return local_rank_of(owner) == local_rank; };
  sum.gives = parts_in(chunk, sum.request.parts, [&](int owner) {
    return gives(owner) ? std::optional(host_of(owner)) : std::nullopt;
  });
  sum.chunk = std::move(chunk);
  return parts_.peers->launch_all_gather(sum.flat, sum.gives);
}

// Each rank gets its elements over its own link. Those with its local rank on the other hosts read
// them there, in the memory of whoever gives them.
Ticket HierarchicalCollective::send_among_hosts(const Sum& sum, const OwnedChunk& chunk) {
  const auto hosts = static_cast<std::size_t>(parts_.peers->world_size());
  TcpRoutes routes{std::vector<TcpScattered>(hosts), std::vector<TcpScattered>(hosts),
                   sum.request.hash()};
  const auto buffer_of = [&](int from) {
    return chunk.buffer_of(local_rank_of(from), parts_.host->rank());
  };
  const std::size_t size = size_of(sum.flat.dtype);
  for (const Transfer& one : sum.request.transfers) {
    const auto bytes = [&](std::byte* buffer, std::size_t begin) {
      return std::span(buffer + begin * size, (one.end - one.begin) * size);
    };
    if (on_this_host(one.from) && one.to == rank()) {
      copy_elements(sum.flat, one, buffer_of(one.from));
    } else if (on_this_host(one.from) && local_rank_of(one.to) == parts_.host->rank()) {
      routes.out[static_cast<std::size_t>(host_of(one.to))].add(
          bytes(buffer_of(one.from), one.begin));
    } else if (one.to == rank()) {
      routes.in[static_cast<std::size_t>(host_of(one.from))].add(
          bytes(static_cast<std::byte*>(sum.flat.data), one.target));
    }
  }
  return parts_.peers->launch(sum.flat, OperationKind::kAllToAll, std::move(routes));
}

void HierarchicalCollective::note_added() {
  for (; added_ < among_hosts_ && parts_.peers->done(sums_[added_].among_hosts); ++added_) {
    Sum& sum = sums_[added_];
    for (const Part& part : sum.gives)
      copy_first_to_all(buffers_from(sum.chunk, part.begin),
                        (part.end - part.begin) * size_of(sum.flat.dtype));
    parts_.host->note_added(sum.on_host);
  }
}

void HierarchicalCollective::progress() {
  while (among_hosts_ < sums_.size() && parts_.host->may_add(sums_[among_hosts_].on_host))
    go_among_hosts();
  parts_.peers->progress();
  note_added();
}

void HierarchicalCollective::wait(Ticket ticket) {
  DDPRUN_ASSERT(reached(launched_, ticket));
  if (reached(done_, ticket)) return;
  const auto pending = static_cast<std::size_t>(ticket - done_);
  for (std::size_t i = 0; i < pending; ++i) {
    if (i == among_hosts_) {
      parts_.host->await_launch(sums_[i].on_host);
      go_among_hosts();
    }
    parts_.peers->wait(sums_[i].among_hosts);
    note_added();
  }
  parts_.host->wait(sums_[pending - 1].on_host);
  for (std::size_t i = 0; i < pending; ++i) ring_->end(sums_[i].number);
  sums_.erase(sums_.begin(), sums_.begin() + static_cast<std::ptrdiff_t>(pending));
  among_hosts_ -= pending;
  added_ -= pending;
  done_ = ticket;
}

// To one rank of each host, and from there to the others of that host.
void HierarchicalCollective::broadcast(Flat flat, int root) {
  const Doing doing(*this, OperationKind::kBroadcast, flat.bytes());
  meet(doing.number(), root);
  const int local_ranks = parts_.host->world_size();
  const int local_root = root % local_ranks;
  if (parts_.host->rank() == local_root) parts_.peers->broadcast(flat, root / local_ranks);
  parts_.host->broadcast(flat, local_root);
}

}  // namespace

std::unique_ptr<Collective> make_hierarchical_collective(HierarchicalParts parts) {
  return std::make_unique<HierarchicalCollective>(std::move(parts));
}

}  // namespace ddprun::worker
