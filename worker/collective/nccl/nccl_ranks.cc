#include "worker/collective/nccl/nccl_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include "worker/collective/core/reached.h"
#include "worker/collective/core/split.h"
#include "worker/collective/nccl/nccl_calls.h"
#include "worker/collective/nccl/nccl_monitor.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// The most time for the work under way when the collective goes, and then for the farewell of all
// ranks. Then it is aborted.
constexpr std::chrono::seconds kFarewell{10};

// The abilities of a rank's NCCL.
constexpr std::byte kRegisters{1};
constexpr std::byte kSplits{2};

}  // namespace

NcclRanks::NcclRanks(const NcclParts& parts)
    : parts_(parts),
      stream_(parts.program.make()),
      launched_(parts.job.last_ticket),
      communicator_(std::make_shared<Communicator>(
          parts.job.rank,
          Communicator::Gpus{.own = parts.job.gpu,
                             .fails_with = parts.job.fails_with.value_or(parts.job.gpu)},
          parts.optional, parts.limits.abort)),
      dropped_(std::make_shared<DroppedMemory>(communicator_, parts.program, parts.job.gpu)),
      memory_(communicator_, dropped_, parts.optional),
      watcher_(std::make_shared<NcclWatcher>(communicator_,
                                             NcclWatcher::Options{.rank = parts.job.rank,
                                                                  .ranks = parts.job.ranks,
                                                                  .gpu = parts.job.gpu,
                                                                  .timeout = parts.job.timeout})) {
  communicator_->on_failure([watcher = std::weak_ptr(watcher_)] {
    if (const auto waked = watcher.lock()) waked->wake();
  });
  watcher_->start();
}

NcclRanks::~NcclRanks() {
  const OnGpu here(job().gpu);
  if (!watcher_->wait_for_all(kFarewell)) communicator_->give_up();
  watcher_->stop(parts_.limits.abort);
  sums_.clear();
  dropped_->close(kFarewell);
  communicator_->leave(kFarewell);
  if (communicator_->failed()) staging_.abandon();
}

void NcclRanks::form(const ncclUniqueId& id, std::unique_ptr<DesyncBoard> board) {
  const auto deadline = Clock::now() + job().timeout;
  communicator_->form(id, job().ranks, job().timeout);
  begin(deadline, std::move(board));
}

void NcclRanks::adopt(ncclComm_t group) {
  const auto deadline = Clock::now() + job().timeout;
  communicator_->adopt(group, job().ranks, job().timeout);
  begin(deadline, nullptr);
}

// All ranks register their memory, or none does. They split by NCCL, or none does.
void NcclRanks::begin(Deadline deadline, std::unique_ptr<DesyncBoard> board) {
  watch_over({.rank = job().rank,
              .silence = job().timeout + parts_.limits.silence,
              .abort = parts_.limits.abort,
              .end_process = parts_.end_process},
             communicator_, watcher_);
  std::byte mine = memory_.can_register() ? kRegisters : std::byte{};
  if (parts_.optional.split != nullptr) mine |= kSplits;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  const std::uint32_t operation = watcher_->begin(OperationKind::kBarrier, 0);
  const auto work = watcher_->watch(operation, Part::kEnds, left);
  const auto all = gather_equal(std::span(&mine, 1), work);
  std::byte common = mine;
  for (const std::byte theirs : all) common &= theirs;
  if ((common & kRegisters) != std::byte{}) memory_.register_from_now_on();
  splits_ = (common & kSplits) != std::byte{};
  if (board != nullptr) watcher_->compare_over(std::move(board));
}

void NcclRanks::check() {
  const OnGpu here(job().gpu);
  communicator_->check();
  let_go();
}

// Memory is freed here and not by the watcher. To free memory may wait for the GPU, and so for a
// peer. A capture that is over needs no order any more.
void NcclRanks::let_go() {
  if (is_capturing() || is_captured(stream_)) return;
  std::erase_if(sums_, [](const Sum& sum) { return sum.captured.has_value(); });
  while (!sums_.empty() && watcher_->over(*sums_.front().work)) sums_.pop_front();
  dropped_->collect();
}

// The program captures what its stream gets from now on.
bool NcclRanks::is_capturing() const { return is_captured(parts_.program.current()); }

void NcclRanks::refuse_in_a_capture(const char* what) const {
  if (!is_capturing() && !is_captured(stream_)) return;
  throw CollectiveError(fmt::format(
      "rank {}: {} while its stream is captured: a graph cannot hold it. Call it before "
      "the capture",
      job().rank, what));
}

// A failure here leaves the ranks apart, so it ends the communicator. `launch` returns where the
// program's work before it ends, if it waits for that.
void NcclRanks::put_in_stream(NcclWatcher::Work& work,
                              const std::function<std::optional<Event>()>& launch) {
  try {
    std::optional<Event> ready = launch();
    watcher_->launched(work, std::move(ready), Event(stream_));
  } catch (const CollectiveError& error) {
    communicator_->fail(error.what());
    throw;
  }
}

// Our stream waits for what the program's stream holds: kernels that write the gradients. `after`
// puts into the stream what follows.
NcclRanks::Work NcclRanks::launch_operation(std::uint32_t operation, const char* doing,
                                            const Communicator::Call& call,
                                            const std::function<void()>& after) {
  auto work = watcher_->watch(operation, Part::kEnds);
  put_in_stream(*work, [&] {
    std::optional<Event> ready(parts_.program.current());
    ready->hold(stream_);
    communicator_->run(doing, call);
    if (after) after();
    return ready;
  });
  return work;
}

// The watcher looks for failures alone. Events of a capture tell nothing, and a graph may run often
// or never.
Event NcclRanks::capture_operation(const char* doing, const Communicator::Call& call,
                                   std::shared_ptr<std::byte> memory) {
  try {
    dropped_->share_with_graph(parts_.program.current(), std::move(memory),
                               communicator_->in_a_graph());
    watcher_->wake();
    Event(parts_.program.current()).hold(stream_);
    communicator_->run(doing, call);
    return Event(stream_);
  } catch (const CollectiveError& error) {
    communicator_->fail(error.what());
    throw;
  }
}

// The current stream goes on when it is done; the host at once.
void NcclRanks::do_in_order(const Movement& movement, std::size_t bytes,
                            const Communicator::Call& call, const std::function<void()>& after) {
  check();
  if (is_capturing())
    return capture_operation(movement.doing, call, nullptr).hold(parts_.program.current());
  refuse_in_a_capture("a transfer of another stream");
  const auto operation = watcher_->begin(movement.kind, bytes, Dtype::kUInt8, movement.peer);
  const auto work = launch_operation(operation, movement.doing, call, after);
  work->done().hold(parts_.program.current());
}

// The current stream may use it when it is cleared.
std::shared_ptr<std::byte> NcclRanks::allocate(std::size_t bytes) {
  const OnGpu here(job().gpu);
  check();
  refuse_in_a_capture("allocate()");
  auto memory = memory_.allocate(bytes, stream_);
  Event(stream_).hold(parts_.program.current());
  return memory;
}

Ticket NcclRanks::launch(const Flat& flat, const LaunchRequest& request) {
  const OnGpu here(job().gpu);
  check();
  const NcclPlace place{.rank = job().rank, .ranks = job().ranks, .stream = stream_};
  const Communicator::Call call_nccl = [&](ncclComm_t comm) {
    return call_nccl_for(flat, request, place, comm);
  };
  auto memory = memory_.owner_of(flat);
  if (is_capturing()) {
    Event captured = capture_operation(doing(request), call_nccl, std::move(memory));
    sums_.push_back({++launched_, nullptr, nullptr, std::move(captured)});
    return launched_;
  }
  refuse_in_a_capture("a sum of another stream");
  // Beyond a thousand or so the launch itself would block, while it holds the communicator.
  if (sums_.size() >= kLaunchedMax) {
    watcher_->wait(*sums_.front().work);
    let_go();
  }
  const auto operation =
      watcher_->begin(request.kind(), flat.bytes(), flat.dtype, -1, request.hash());
  auto work = launch_operation(operation, doing(request), call_nccl);
  sums_.push_back({++launched_, std::move(memory), std::move(work), std::nullopt});
  return launched_;
}

// Our stream is in order, so the latest of them stands for all. Those that are over need no order.
void NcclRanks::wait(Ticket ticket) {
  const OnGpu here(job().gpu);
  check();
  const auto later = std::ranges::find_if(
      sums_, [ticket](const Sum& sum) { return !reached(ticket, sum.ticket); });
  if (later == sums_.begin()) return;
  const Sum& last = *std::prev(later);
  if (!last.captured && is_capturing()) {
    if (watcher_->over(*last.work)) return;
    refuse_in_a_capture("wait() for a sum that was launched before");
  }
  last.done().hold(parts_.program.current());
}

// NCCL takes no mixture of registered and plain memory in a call (its guide, "User Buffer
// Registration"). Here each rank gives what it has. So registered memory travels as a plain copy.
void NcclRanks::transfer(const Flat& flat, const Movement& movement, const TransferCall& call) {
  const OnGpu here(job().gpu);
  const std::size_t bytes = flat.bytes();
  if (!memory_.is_registered(flat)) {
    return do_in_order(movement, bytes,
                       [&](ncclComm_t comm) { return call(flat.data, bytes, comm); });
  }
  check();
  refuse_in_a_capture("a transfer of memory from allocate()");
  const auto copy = memory_.plain(bytes);
  const auto move = [&](void* to, const void* from) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
               "copy on the GPU");
  };
  const auto send_copy = [&](ncclComm_t comm) {
    if (movement.reads) move(copy.get(), flat.data);
    return call(copy.get(), bytes, comm);
  };
  const auto take_copy = [&] {
    if (movement.writes) move(flat.data, copy.get());
  };
  do_in_order(movement, bytes, send_copy, take_copy);
}

void NcclRanks::broadcast(Flat flat, int root) {
  const bool is_root = root == job().rank;
  transfer(flat,
           {.kind = OperationKind::kBroadcast,
            .doing = "broadcast",
            .reads = is_root,
            .writes = !is_root},
           [&](void* data, std::size_t bytes, ncclComm_t comm) {
             return ncclBroadcast(data, data, bytes, ncclUint8, root, comm, stream_);
           });
}

void NcclRanks::send(Flat flat, int to) {
  other_rank(to);
  transfer(flat, {.kind = OperationKind::kSend, .doing = "send", .peer = to, .reads = true},
           [&](void* data, std::size_t bytes, ncclComm_t comm) {
             return ncclSend(data, bytes, ncclUint8, to, comm, stream_);
           });
}

void NcclRanks::receive(Flat flat, int from) {
  other_rank(from);
  transfer(flat,
           {.kind = OperationKind::kReceive, .doing = "receive", .peer = from, .writes = true},
           [&](void* data, std::size_t bytes, ncclComm_t comm) {
             return ncclRecv(data, bytes, ncclUint8, from, comm, stream_);
           });
}

std::unique_ptr<Collective> NcclRanks::split(int color, int key) {
  const OnGpu here(job().gpu);
  check();
  refuse_in_a_capture("split()");
  if (splits_) {
    const auto requests = gather_split_requests(*this, {color, key});
    return split_by_nccl(group_place(requests, job().rank), color, key);
  }
  const auto join = [this](const GroupPlace& place, Exchange& exchange) {
    return join_nccl_on(parts_of(place), exchange, nullptr);
  };
  return split_group(*this, {color, key}, join);
}

NcclParts NcclRanks::parts_of(const GroupPlace& place) const {
  NcclParts group = parts_;
  group.job = {.rank = place.rank,
               .ranks = place.ranks,
               .gpu = job().gpu,
               .timeout = job().timeout,
               .fails_with = job().fails_with};
  return group;
}

// NCCL splits a communicator on its GPU alone, so the ranks meet anew. A program waits for the sums
// of all its GPUs. If those of one fail, the others would only come to their deadline.
std::unique_ptr<Collective> NcclRanks::on_gpu(int gpu) {
  const OnGpu here(job().gpu);
  check();
  refuse_in_a_capture("on_gpu()");
  if (const int count = gpu_count(); gpu < 0 || gpu >= count) {
    throw std::invalid_argument(fmt::format(
        "on_gpu({}): expected a number from 0 on below the {} GPUs that this process sees", gpu,
        count));
  }
  const auto join = [&](const GroupPlace& place, Exchange& exchange) {
    NcclParts other = parts_of(place);
    other.job.gpu = gpu;
    other.job.fails_with = job().fails_with.value_or(job().gpu);
    other.program = parts_.program_on(gpu);
    const OnGpu there(gpu);
    return join_nccl_on(other, exchange, nullptr);
  };
  return split_group(*this, {.color = 0, .key = job().rank}, join);
}

std::unique_ptr<Collective> NcclRanks::split_by_nccl(const GroupPlace& place, int color, int key) {
  const auto work = watcher_->watch(watcher_->begin(OperationKind::kBarrier, 0), Part::kEnds);
  ncclComm_t group = nullptr;
  put_in_stream(*work, [&]() -> std::optional<Event> {
    group = communicator_->split(color, key);
    return std::nullopt;
  });
  if (place.ranks == 0) return nullptr;
  auto collective = std::make_unique<NcclRanks>(parts_of(place));
  collective->adopt(group);
  return collective;
}

// ncclAllGather wants equal lengths, so `mine` must have the same length on all ranks. Returns all
// of them in a row, by rank.
std::vector<std::byte> NcclRanks::gather_equal(std::span<const std::byte> mine, const Work& work) {
  const std::size_t bytes = mine.size() * static_cast<std::size_t>(job().ranks);
  const std::size_t place = mine.size() * static_cast<std::size_t>(job().rank);
  put_in_stream(*work, [&]() -> std::optional<Event> {
    staging_.reserve(bytes, [this] { dropped_->make_room(); });
    std::memcpy(staging_.host() + place, mine.data(), mine.size());
    std::byte* own = staging_.gpu() + place;
    check_cuda(
        cudaMemcpyAsync(own, staging_.host() + place, mine.size(), cudaMemcpyHostToDevice, stream_),
        "copy to the GPU");
    communicator_->run("all-gather", [&](ncclComm_t comm) {
      return ncclAllGather(own, staging_.gpu(), mine.size(), ncclUint8, comm, stream_);
    });
    check_cuda(
        cudaMemcpyAsync(staging_.host(), staging_.gpu(), bytes, cudaMemcpyDeviceToHost, stream_),
        "copy from the GPU");
    return std::nullopt;
  });
  watcher_->wait(*work);
  return {staging_.host(), staging_.host() + bytes};
}

// Gathers the lengths first, then the bytes, padded to the longest.
std::vector<std::vector<std::byte>> NcclRanks::all_gather_bytes(std::span<const std::byte> mine) {
  const OnGpu here(job().gpu);
  check_gather_size(mine.size());
  check();
  refuse_in_a_capture("all_gather_bytes()");
  const std::uint32_t operation = watcher_->begin(OperationKind::kGather, mine.size());
  const std::uint64_t length = mine.size();
  const auto lengths_blob =
      gather_equal(std::as_bytes(std::span(&length, 1)), watcher_->watch(operation, Part::kGoesOn));
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(job().ranks));
  std::memcpy(lengths.data(), lengths_blob.data(), lengths_blob.size());
  const std::size_t longest = *std::ranges::max_element(lengths);
  std::vector<std::vector<std::byte>> blobs(lengths.size());
  if (longest > 0) {
    std::vector<std::byte> padded(mine.begin(), mine.end());
    padded.resize(longest);
    const auto all = gather_equal(padded, watcher_->watch(operation, Part::kGoesOn));
    for (std::size_t peer = 0; peer < blobs.size(); ++peer) {
      const std::byte* blob = all.data() + peer * longest;
      blobs[peer].assign(blob, blob + lengths[peer]);
    }
  }
  watcher_->end(operation);
  return blobs;
}

void NcclRanks::barrier() {
  const OnGpu here(job().gpu);
  check();
  refuse_in_a_capture("barrier()");
  const std::byte nothing{};
  gather_equal(std::span(&nothing, 1),
               watcher_->watch(watcher_->begin(OperationKind::kBarrier, 0), Part::kEnds));
}

}  // namespace ddprun::worker
