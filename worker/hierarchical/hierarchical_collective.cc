#include "worker/hierarchical/hierarchical_collective.h"

#include <deque>
#include <exception>
#include <utility>

#include "proto/assert.h"
#include "worker/collective/flight_record.h"
#include "worker/collective/operation_ring.h"
#include "worker/tcp/tcp_memory.h"

namespace ddprun::worker {
namespace {

// Sums are composed; the other verbs are those of all ranks over TCP, but for broadcasts, which are large.
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
    return parts_.all->all_gather(mine);
  }
  void barrier() override {
    const Doing doing(*this, Verb::kBarrier, 0);
    parts_.all->barrier();
  }
  void monitored_barrier(std::chrono::milliseconds limit) override {
    const Doing doing(*this, Verb::kBarrier, 0);
    parts_.all->monitored_barrier(limit);
  }
  void send(Flat flat, int to) override {
    const Doing doing(*this, Verb::kSend, flat.bytes());
    parts_.all->send(flat, to);
  }
  void receive(Flat flat, int from) override {
    const Doing doing(*this, Verb::kReceive, flat.bytes());
    parts_.all->receive(flat, from);
  }
  std::unique_ptr<Collective> split(int color, int key) override {
    const Doing doing(*this, Verb::kGather, 0);
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
  // An operation of this rank, from its begin to its end. It comes after the sums that were launched before.
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

   private:
    OperationRing& ring_;
    int exceptions_ = std::uncaught_exceptions();
    std::uint32_t number_ = 0;
  };
  struct Sum {
    Flat flat;
    std::shared_ptr<std::byte> memory;  // that `flat` lies in
    Reduction reduction;
    std::uint32_t number;  // in ring_
    Ticket on_host;
    Ticket among_hosts = 0;
  };

  void go_among_hosts();

  HierarchicalParts parts_;
  std::chrono::milliseconds timeout_;
  std::unique_ptr<OperationRing> ring_ = std::make_unique<OperationRing>();
  TcpMemory memory_;             // what allocate() has given out
  std::deque<Sum> sums_;         // launched and not complete
  std::size_t among_hosts_ = 0;  // of sums_, from the front: those that the hosts add
  Ticket launched_ = 0;
  Ticket done_ = 0;
};

Ticket HierarchicalCollective::launch(Flat flat, Reduction reduction) {
  const std::uint32_t number =
      ring_->begin(verb_of(reduction), flat.bytes(), flat.dtype, flat.name);
  const Ticket on_host = parts_.host->launch_to_owners(flat, reduction);
  sums_.push_back({.flat = flat,
                   .memory = memory_.hold(flat),
                   .reduction = reduction,
                   .number = number,
                   .on_host = on_host});
  return ++launched_;
}

// The hosts add the next sum: this rank's chunk, which its host has added. All hosts have as many ranks, so
// the average of their averages is that of all.
void HierarchicalCollective::go_among_hosts() {
  Sum& sum = sums_[among_hosts_++];
  sum.among_hosts = parts_.peers->launch(parts_.host->own_chunk(sum.flat), sum.reduction);
}

void HierarchicalCollective::progress() {
  parts_.host->progress();
  while (among_hosts_ < sums_.size() && parts_.host->own_part_done(sums_[among_hosts_].on_host))
    go_among_hosts();
  parts_.peers->progress();
}

// All ranks of the host launch the last step of their sums here, where all call wait(), and so in the same
// order.
void HierarchicalCollective::wait(Ticket ticket) {
  DDPRUN_ASSERT(reached(launched_, ticket));
  if (reached(done_, ticket)) return;
  const auto pending = static_cast<std::size_t>(ticket - done_);
  while (among_hosts_ < pending) {
    parts_.host->wait(sums_[among_hosts_].on_host);
    go_among_hosts();
  }
  Ticket last = 0;
  for (std::size_t i = 0; i < pending; ++i) {
    const Sum& sum = sums_[i];
    parts_.peers->wait(sum.among_hosts);
    last = parts_.host->launch_from_owners(sum.flat);
  }
  parts_.host->wait(last);
  for (std::size_t i = 0; i < pending; ++i) ring_->end(sums_[i].number);
  sums_.erase(sums_.begin(), sums_.begin() + static_cast<std::ptrdiff_t>(pending));
  among_hosts_ -= pending;
  done_ = ticket;
}

// To one rank of each host, and from there to the others of that host.
void HierarchicalCollective::broadcast(Flat flat, int root) {
  const Doing doing(*this, Verb::kBroadcast, flat.bytes());
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
