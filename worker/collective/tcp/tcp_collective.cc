#include "worker/collective/tcp/tcp_collective.h"

#include <ddprun/process.h>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "base/assert.h"
#include "worker/collective/core/flight_record.h"
#include "worker/collective/core/operation_ring.h"
#include "worker/collective/core/parts.h"
#include "worker/collective/core/reached.h"
#include "worker/collective/core/split.h"
#include "worker/collective/kernels/copy_kernels.h"
#include "worker/collective/tcp/tcp_connect.h"
#include "worker/collective/tcp/tcp_memory.h"
#include "worker/collective/tcp/tcp_peers.h"
#include "worker/collective/tcp/tcp_scratch.h"

namespace ddprun::worker {
namespace {

class MeshCollective final : public TcpCollective {
 public:
  MeshCollective(TcpConnections connected, TcpJob job)
      : job_(std::move(job)),
        peers_(
            std::move(connected.links), std::move(connected.hosts),
            {.place = {static_cast<std::size_t>(job_.rank), static_cast<std::size_t>(job_.ranks)},
             .timeout = job_.timeout}) {}

  int rank() const override { return job_.rank; }
  int world_size() const override { return job_.ranks; }
  Device device() const override { return Device::kCpu; }
  std::string_view name() const override { return "tcp"; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    return memory_.allocate(bytes);
  }

  void adopt(const std::shared_ptr<std::byte>& memory, std::size_t bytes) override {
    memory_.adopt(memory, bytes);
  }
  Ticket launch(Flat flat, Reduction reduction) override {
    return launch(flat, all_reduce_of(reduction), nullptr);
  }
  Ticket launch_reduce_scatter(Flat flat, std::span<const Part> parts,
                               Reduction reduction) override {
    return launch(flat, reduce_scatter_of(flat, parts, reduction, world_size()), nullptr);
  }
  Ticket launch_all_gather(Flat flat, std::span<const Part> parts) override {
    return send_along(flat, all_gather_of(flat, parts, world_size()));
  }
  Ticket launch_all_to_all(Flat flat, std::span<const Transfer> transfers) override {
    return send_along(flat, all_to_all_of(flat, transfers, world_size()));
  }
  Ticket launch(Flat flat, LaunchRequest request, std::unique_ptr<TcpFeed> feed) override;
  Ticket launch(Flat flat, OperationKind kind, TcpRoutes routes) override;
  bool done(Ticket ticket) const override { return reached(done_, ticket); }
  void progress() override;
  void wait(Ticket ticket) override;
  void broadcast(Flat flat, int root) override;
  std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> mine) override;
  void barrier() override { meet(OperationKind::kBarrier, -1); }
  void meet(OperationKind kind, int root) override {
    run(tcp_barrier(begin({.kind = kind, .root = root})));
  }
  void monitored_barrier(std::chrono::milliseconds limit) override;
  void send(Flat flat, int to) override { transfer(OperationKind::kSend, flat, to); }
  void receive(Flat flat, int from) override { transfer(OperationKind::kReceive, flat, from); }
  std::unique_ptr<Collective> split(int color, int key) override;
  void reset() override;
  std::uint32_t resets() const override { return resets_; }
  std::string flight_record() const override {
    return worker::flight_record(
        *ring_,
        {.collective = name(), .rank = rank(), .ranks = world_size(), .timeout = peers_.timeout()});
  }

 private:
  struct Sum {
    std::shared_ptr<std::byte> memory;  // that its elements lie in
    std::unique_ptr<TcpOperation> operation;
  };
  struct OperationRequest {
    OperationKind kind;
    Flat flat{.dtype = Dtype::kUInt8};
    Reduction reduction = Reduction::kSum;
    int root = -1;
    std::uint64_t parts = 0;
  };

  OperationHead begin(const OperationRequest& wanted);
  void make_room() {
    if (launched_ - done_ >= kLaunchedMax) wait(done_ + 1);
  }
  Ticket add(Sum sum);
  Ticket send_along(const Flat& flat, const LaunchRequest& request);
  std::unique_ptr<TcpOperation> operation_of(Flat flat, LaunchRequest request,
                                             std::unique_ptr<TcpFeed> feed);
  void run(std::unique_ptr<TcpOperation> operation);
  void transfer(OperationKind kind, Flat flat, int peer);
  void complete_front();
  const TcpOperation* front() const {
    return sums_.empty() ? nullptr : sums_.front().operation.get();
  }
  static std::span<std::byte> bytes_of(Flat flat) {
    return {static_cast<std::byte*>(flat.data), flat.bytes()};
  }

  TcpJob job_;
  TcpMemory memory_;
  TcpPeers peers_;
  TcpScratch scratch_;
  std::unique_ptr<OperationRing> ring_ = std::make_unique<OperationRing>();
  std::uint32_t sequence_ = 0;  // of collective operations
  // Launched and not complete. The first one is under way; the others begin after it.
  std::deque<Sum> sums_;
  Ticket launched_ = 0;
  Ticket done_ = 0;
  std::uint32_t resets_ = 0;
};

OperationHead MeshCollective::begin(const OperationRequest& wanted) {
  const std::uint32_t number = ring_->begin(wanted.kind, wanted.flat.bytes(), wanted.flat.dtype,
                                            wanted.flat.name, wanted.parts);
  return {.number = number,
          .sequence = is_transfer(wanted.kind) ? 0 : ++sequence_,
          .kind = wanted.kind,
          .dtype = wanted.flat.dtype,
          .reduction = wanted.reduction,
          .root = wanted.root,
          .name = wanted.flat.name,
          .bytes = wanted.flat.bytes(),
          .parts = wanted.parts};
}

Ticket MeshCollective::launch(Flat flat, LaunchRequest request, std::unique_ptr<TcpFeed> feed) {
  make_room();
  auto memory = memory_.hold(flat);
  return add({std::move(memory), operation_of(flat, std::move(request), std::move(feed))});
}

Ticket MeshCollective::launch(Flat flat, OperationKind kind, TcpRoutes routes) {
  make_room();
  auto memory = memory_.hold(flat);
  const OperationHead head = begin({.kind = kind, .flat = flat, .parts = routes.hash});
  return add({std::move(memory), tcp_along(head, std::move(routes))});
}

Ticket MeshCollective::send_along(const Flat& flat, const LaunchRequest& request) {
  const auto memory = memory_.hold(flat);  // throws before anything is written
  for (const Transfer& one : request.transfers) {
    if (one.from == rank() && one.to == rank())
      copy_elements(flat, one, static_cast<const std::byte*>(flat.data));
  }
  return launch(flat, request.kind(), tcp_routes_of(flat, request, rank(), world_size()));
}

Ticket MeshCollective::add(Sum sum) {
  sums_.push_back(std::move(sum));
  if (sums_.size() == 1) peers_.start();
  ++launched_;
  progress();
  return launched_;
}

std::unique_ptr<TcpOperation> MeshCollective::operation_of(Flat flat, LaunchRequest request,
                                                           std::unique_ptr<TcpFeed> feed) {
  DDPRUN_ASSERT(request.sharing == Sharing::kAllReduce ||
                request.sharing == Sharing::kReduceScatter);
  TcpShared shared{bytes_of(flat), std::move(request), std::move(feed)};
  Reduction& reduction = shared.request.reduction;
  const bool adds = is_sum(reduction) || reduction == Reduction::kAverage;
  const bool narrow = job_.wire == Wire::kBFloat16 && flat.dtype == Dtype::kFloat32 && adds;
  if (narrow) flat.dtype = Dtype::kBFloat16;
  if (narrow && is_sum(reduction)) reduction = Reduction::kWideSum;
  const OperationHead head = begin({.kind = shared.request.kind(),
                                    .flat = flat,
                                    .reduction = reduction,
                                    .parts = shared.request.hash()});
  if (narrow) return tcp_reduce_as_bfloat16(head, peers_.place(), std::move(shared), scratch_);
  return tcp_reduce(head, peers_.place(), std::move(shared), scratch_);
}

void MeshCollective::progress() {
  while (!sums_.empty() && peers_.advance(*sums_.front().operation)) complete_front();
}

void MeshCollective::wait(Ticket ticket) {
  DDPRUN_ASSERT(reached(launched_, ticket));
  while (!reached(done_, ticket)) {
    peers_.await(*sums_.front().operation);
    complete_front();
  }
}

void MeshCollective::complete_front() {
  ring_->end(sums_.front().operation->head().number);
  sums_.pop_front();
  ++done_;
  if (!sums_.empty()) peers_.start();
}

void MeshCollective::run(std::unique_ptr<TcpOperation> operation) {
  wait(launched_);
  peers_.start();
  peers_.await(*operation);
  ring_->end(operation->head().number);
}

// One limit for all that has to come, sums that are under way, too.
void MeshCollective::monitored_barrier(std::chrono::milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + limit;
  const auto await = [&](TcpOperation& operation) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    peers_.await(operation, TcpPeers::Limit{limit, left});
  };
  const auto operation = tcp_barrier(begin({.kind = OperationKind::kBarrier}));
  while (!sums_.empty()) {
    await(*sums_.front().operation);
    complete_front();
  }
  peers_.start();
  await(*operation);
  ring_->end(operation->head().number);
}

void MeshCollective::broadcast(Flat flat, int root) {
  const OperationHead head = begin({.kind = OperationKind::kBroadcast, .flat = flat, .root = root});
  run(tcp_broadcast(head, peers_.place(), bytes_of(flat)));
}

std::vector<std::vector<std::byte>> MeshCollective::all_gather_bytes(
    std::span<const std::byte> mine) {
  check_gather_size(mine.size());
  std::vector<std::vector<std::byte>> parts(peers_.place().ranks);
  auto& own = parts[peers_.place().rank];
  own.assign(mine.begin(), mine.end());
  const Flat flat{own.data(), own.size(), Dtype::kUInt8};
  run(tcp_gather(begin({.kind = OperationKind::kGather, .flat = flat}), peers_.place(), parts));
  return parts;
}

void MeshCollective::transfer(OperationKind kind, Flat flat, int peer) {
  const std::size_t other = other_rank(peer);
  run(tcp_transfer(begin({.kind = kind, .flat = flat}), other, bytes_of(flat)));
}

std::unique_ptr<Collective> MeshCollective::split(int color, int key) {
  const auto join = [this](const GroupPlace& place,
                           Exchange& exchange) -> Result<std::unique_ptr<Collective>> {
    if (place.ranks == 1) return make_alone_collective();
    TcpJob job = job_;
    job.rank = place.rank;
    job.ranks = place.ranks;
    return as_collective(join_tcp(job, exchange));
  };
  return split_group(*this, {color, key}, join);
}

// All ranks go on with equal numbers, as if all had done what the foremost one has done.
void MeshCollective::reset() {
  ResetNote foremost{ring_->latest(), sequence_, launched_};
  for (const ResetNote& note : peers_.reset(front(), foremost)) {
    if (!reached(foremost.operations, note.operations)) foremost.operations = note.operations;
    if (!reached(foremost.sequence, note.sequence)) foremost.sequence = note.sequence;
    if (!reached(foremost.tickets, note.tickets)) foremost.tickets = note.tickets;
  }
  sums_.clear();
  launched_ = done_ = foremost.tickets;
  sequence_ = foremost.sequence;
  ring_->go_on_after(foremost.operations);
  ++resets_;
}

}  // namespace

Result<std::unique_ptr<TcpCollective>> join_tcp(const TcpJob& job, Exchange& exchange) {
  DDPRUN_ASSERT(job.rank >= 0 && job.rank < job.ranks);
  auto connected = tcp_connect(job, exchange);
  if (!connected) return connected.error();
  auto collective = std::make_unique<MeshCollective>(std::move(*connected), job);
  try {
    collective->barrier();
  } catch (const CollectiveError& error) {
    // A rank died or was late while we met: an error of the start, like those of the exchange.
    return Error(ErrorCode::kUnavailable, error.what());
  }
  return std::unique_ptr<TcpCollective>(std::move(collective));
}

}  // namespace ddprun::worker
