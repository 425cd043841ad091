#include "worker/collective/hierarchical/hierarchical_collective.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <deque>
#include <exception>
#include <utility>

#include "base/assert.h"
#include "worker/collective/core/flight_record.h"
#include "worker/collective/core/operation_ring.h"
#include "worker/collective/kernels/reduce_kernels.h"
#include "worker/collective/tcp/tcp_memory.h"

namespace ddprun::worker {
namespace {

// This rank's chunk of a host's sum, on its way over TCP. The ranks of the host are added just
// before it travels, and get the result as it comes.
class HostFeed final : public TcpFeed {
 public:
  HostFeed(OwnedChunk chunk, Reduction reduction)
      : chunk_(std::move(chunk)), reduction_(reduction) {}

  void make(std::size_t begin, std::size_t end) override {
    reduce_to_first(from(begin), end - begin, chunk_.dtype, reduction_);
  }
  void take(std::size_t begin, std::size_t end) override {
    copy_first_to_all(from(begin), (end - begin) * size_of(chunk_.dtype));
  }

 private:
  std::vector<std::byte*> from(std::size_t element) const {
    std::vector<std::byte*> buffers = chunk_.buffers;
    for (std::byte*& buffer : buffers) buffer += element * size_of(chunk_.dtype);
    return buffers;
  }

  OwnedChunk chunk_;
  Reduction reduction_;
};

// Sums and barriers are composed. Other verbs are those of all ranks over TCP, once all are known
// to do the same. Broadcasts, which are large, go to one rank of each host first.
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

  Ticket launch(Flat flat, Reduction reduction) override;
  void progress() override;
  void wait(Ticket ticket) override;
  void broadcast(Flat flat, int root) override;
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override {
    const Doing doing(*this, Verb::kGather, mine.size());
    meet(doing.number());
    return parts_.all->all_gather(mine);
  }
  void barrier() override {
    const Doing doing(*this, Verb::kBarrier, 0);
    meet(doing.number());
  }
  // Waits for no sum: it has links of its own, and shall name all that are late.
  void monitored_barrier(std::chrono::milliseconds limit) override {
    const std::uint32_t number = ring_->begin(Verb::kBarrier, 0);
    parts_.all->monitored_barrier(limit);
    ring_->end(number);
  }
  void send(Flat flat, int to) override {
    other_rank(to);
    const Doing doing(*this, Verb::kSend, flat.bytes());
    if (on_this_host(to)) return parts_.host->send(flat, to % parts_.host->world_size());
    parts_.all->send(flat, to);
  }
  void receive(Flat flat, int from) override {
    other_rank(from);
    const Doing doing(*this, Verb::kReceive, flat.bytes());
    if (on_this_host(from)) return parts_.host->receive(flat, from % parts_.host->world_size());
    parts_.all->receive(flat, from);
  }
  std::unique_ptr<Collective> split(int color, int key) override {
    const Doing doing(*this, Verb::kGather, 0);
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
    Doing(HierarchicalCollective& ranks, Verb verb, std::uint64_t bytes) : ring_(*ranks.ring_) {
      ranks.wait(ranks.launched_);
      number_ = ring_.begin(verb, bytes);
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
    Reduction reduction;
    OperationName name;
    std::uint32_t number;  // in ring_
    Ticket on_host;
    Ticket among_hosts = 0;
  };

  bool on_this_host(int rank) const {
    return rank / parts_.host->world_size() == parts_.peers->rank();
  }
  // The next step of a rank.
  struct Next {
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
  const Next mine{ring_->find(number).value_or(Operation{}), root};
  const auto all = parts_.host->gather_for(mine.operation.verb, std::as_bytes(std::span(&mine, 1)));
  for (std::size_t local = 0; local < all.size(); ++local) {
    Next theirs{};
    if (all[local].size() == sizeof theirs) std::memcpy(&theirs, all[local].data(), sizeof theirs);
    if (theirs.operation.verb == mine.operation.verb && theirs.root == root) continue;
    throw CollectiveError(
        fmt::format("rank {} does {}, local rank {} of its host does {}: they do different things",
                    rank(), describe(mine.operation), local, describe(theirs.operation)));
  }
  parts_.peers->meet(mine.operation.verb, root);
}

Ticket HierarchicalCollective::launch(Flat flat, Reduction reduction) {
  if (sums_.size() >= kLaunchedMax) wait(done_ + 1);
  const std::uint32_t number =
      ring_->begin(verb_of(reduction), flat.bytes(), flat.dtype, flat.name);
  const Ticket on_host = parts_.host->launch_chunks(flat, reduction);
  sums_.push_back({.memory = memory_.hold(flat),
                   .reduction = reduction,
                   .name = flat.name,
                   .number = number,
                   .on_host = on_host});
  return ++launched_;
}

// The hosts add the next sum: this rank's chunk. All hosts have as many ranks, so the average of
// their averages is that of all.
void HierarchicalCollective::go_among_hosts() {
  Sum& sum = sums_[among_hosts_++];
  OwnedChunk chunk = parts_.host->owned_chunk(sum.on_host);
  const Flat flat{chunk.buffers.front(), chunk.count, chunk.dtype, sum.name};
  sum.among_hosts = parts_.peers->launch(
      flat, sum.reduction, std::make_unique<HostFeed>(std::move(chunk), sum.reduction));
}

void HierarchicalCollective::note_added() {
  for (; added_ < among_hosts_ && parts_.peers->done(sums_[added_].among_hosts); ++added_)
    parts_.host->note_added(sums_[added_].on_host);
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
  const Doing doing(*this, Verb::kBroadcast, flat.bytes());
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
