// NCCL on the simulated GPU. Collective operations of a communicator meet by their number.
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/worker/collective/nccl/simulated_gpu.h"
#include "tests/worker/collective/nccl/simulated_reduce.h"
#include "tests/worker/collective/nccl/simulated_stream.h"

namespace ddprun::worker::sim {
namespace {

// The part of one rank in an operation.
struct Part {
  enum class Kind { kReduce, kReduceToRoot, kReduceScatter, kGather, kBroadcast, kTransfer } kind;
  const void* from;
  void* to;
  std::size_t count;
  ncclDataType_t type;
  int root = 0;  // kBroadcast, kReduceToRoot, and the sender of a transfer
  ncclRedOp_t reduction = ncclSum;
  bool registered = false;

  std::size_t bytes() const { return count * size_of(type); }
};

// The ranks of one id.
struct Ranks {
  std::mutex mutex;
  std::condition_variable moved;
  int joined = 0;
  using Place = std::tuple<int, int, int>;  // sender and receiver, or -1; a number
  std::map<Place, std::map<int, Part>> parts;
  std::set<Place> done;
  // The groups of an ncclCommSplit(): colors and keys by rank, and the ranks by color.
  struct Split {
    std::map<int, std::pair<int, int>> requests{};
    std::map<int, std::shared_ptr<Ranks>> groups{};
  };
  std::map<int, Split> splits{};  // by number
};

// An operation of a rank, as its kernel begins it.
struct Piece {
  std::pair<int, int> transfer;  // sender and receiver, or -1
  std::size_t needed;            // ranks
  Part part;
};

// The kernels own it, and outlive the communicator. Under Ranks::mutex. Those of one rank run in
// the order of their launches. That holds for graphs and other streams, too (the default of
// NCCL_GRAPH_MIXING_SUPPORT).
struct Kernels {
  bool ended = false;
  int launched = 0;             // and not over: in a stream, or running
  std::uint64_t turns = 0;      // given
  std::uint64_t next_turn = 1;  // who runs next
  int graphs = 0;               // nodes of graphs
  std::map<std::pair<int, int>, int> numbers{};
};

}  // namespace
}  // namespace ddprun::worker::sim

using namespace ddprun::worker::sim;

// The handle that NCCL's users have.
struct ncclComm {
  std::shared_ptr<Ranks> all;
  int rank;
  int ranks;
  int gpu;
  std::shared_ptr<Kernels> kernels = std::make_shared<Kernels>();
  int looks_left = 0;                               // until it has settled
  std::optional<std::function<void()>> deferred{};  // the launch, until then
  std::map<void*, std::size_t> registered{};
  bool revoked = false;
  bool finalized = false;
  int splits = 0;                  // so many
  ncclComm_t* group_of = nullptr;  // the place for the group of one that is under way
  std::atomic<int> calls = 0;
};

namespace {

std::mutex ids_mutex;
std::map<std::string, std::shared_ptr<Ranks>>& ids() {
  static std::map<std::string, std::shared_ptr<Ranks>> all;
  return all;
}

bool is_formed(ncclComm_t comm) {
  const std::lock_guard lock(comm->all->mutex);
  return comm->all->joined == comm->ranks;
}

// Marks a call on a communicator.
class Call {
 public:
  explicit Call(ncclComm_t comm) : comm_(comm) {
    if (comm->calls.fetch_add(1) != 0) ++controls().calls_at_once;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  Call(Call&&) = delete;
  Call& operator=(Call&&) = delete;
  ~Call() {
    if (comm_ != nullptr) comm_->calls.fetch_sub(1);
  }
  void forget() { comm_ = nullptr; }  // it is deleted

  // As ncclCommEnsureReady: the call before must be over, and so must the start.
  bool may_begin() const {
    const bool settled = comm_->looks_left == 0 && is_formed(comm_);
    if (!settled) ++controls().calls_before_settled;
    return settled;
  }

 private:
  ncclComm_t comm_;
};

void reduce(std::map<int, Part>& parts) {
  std::vector<const void*> from;
  for (const auto& [rank, part] : parts) from.push_back(part.from);
  const Part& first = parts.begin()->second;
  const auto all = reduced(from, first.count, first.type, first.reduction);
  for (const auto& [rank, part] : parts) {
    if (!all.empty() && (part.kind == Part::Kind::kReduce || part.root == rank))
      std::memcpy(part.to, all.data(), all.size());
  }
}

// `count` is that of one rank's part. It may lie in what the rank gives.
void reduce_scatter(std::map<int, Part>& parts) {
  std::vector<const void*> from;
  for (const auto& [rank, part] : parts) from.push_back(part.from);
  const Part& first = parts.begin()->second;
  const auto all = reduced(from, first.count * parts.size(), first.type, first.reduction);
  for (const auto& [rank, part] : parts)
    std::memcpy(part.to, all.data() + static_cast<std::size_t>(rank) * part.bytes(), part.bytes());
}

void gather(std::map<int, Part>& parts) {
  for (const auto& [rank, to] : parts) {
    for (const auto& [other, from] : parts) {
      auto* place = static_cast<std::byte*>(to.to) + static_cast<std::size_t>(other) * from.bytes();
      std::memmove(place, from.from, from.bytes());
    }
  }
}

void copy_from_root(std::map<int, Part>& parts) {
  const Part& root = parts.at(parts.begin()->second.root);
  for (const auto& [rank, part] : parts) {
    if (rank != root.root) std::memcpy(part.to, root.from, root.bytes());
  }
}

bool alike(const std::map<int, Part>& parts) {
  const Part& first = parts.begin()->second;
  return std::ranges::all_of(parts, [&](const auto& entry) {
    const Part& part = entry.second;
    return part.kind == first.kind && part.bytes() == first.bytes() && part.root == first.root &&
           part.reduction == first.reduction;
  });
}

void perform(std::map<int, Part>& parts) {
  const bool registered = parts.begin()->second.registered;
  if (std::ranges::any_of(parts,
                          [=](const auto& part) { return part.second.registered != registered; }))
    ++controls().mixed_memory;
  switch (parts.begin()->second.kind) {
    case Part::Kind::kReduce:
    case Part::Kind::kReduceToRoot:
      return reduce(parts);
    case Part::Kind::kReduceScatter:
      return reduce_scatter(parts);
    case Part::Kind::kGather:
      return gather(parts);
    case Part::Kind::kBroadcast:
    case Part::Kind::kTransfer:
      return copy_from_root(parts);
  }
}

using Turns = std::deque<std::uint64_t>;  // of a kernel's launches: a graph's may be several

// The pieces of a group go on together, each as soon as its ranks are there. Ranks that bring
// different things wait until they are aborted.
void kernel(Ranks& all, Kernels& kernels, int rank, const std::vector<Piece>& pieces,
            Turns& turns) {
  std::unique_lock lock(all.mutex);
  const std::uint64_t turn = turns.front();
  turns.pop_front();
  all.moved.wait(lock, [&] { return kernels.ended || kernels.next_turn == turn; });
  std::vector<Ranks::Place> open;
  if (!kernels.ended) {
    for (const Piece& piece : pieces) {
      open.emplace_back(piece.transfer.first, piece.transfer.second,
                        ++kernels.numbers[piece.transfer]);
      all.parts[open.back()].emplace(rank, piece.part);
    }
  }
  const auto needed = pieces.empty() ? 0 : pieces.front().needed;
  while (!kernels.ended && !open.empty()) {
    std::erase_if(open, [&](const Ranks::Place& place) {
      if (all.done.contains(place)) return true;
      auto& parts = all.parts[place];
      if (parts.size() != needed || !alike(parts) || controls().hang) return false;
      perform(parts);
      all.done.insert(place);
      all.moved.notify_all();
      return true;
    });
    if (!open.empty()) all.moved.wait_for(lock, std::chrono::milliseconds(1));
  }
  // Its memory is no longer the others' to work on.
  for (const Ranks::Place& place : open) {
    if (!all.done.contains(place)) all.parts[place].erase(rank);
  }
  --kernels.launched;
  kernels.next_turn = turn + 1;
  all.moved.notify_all();
}

// A graph that holds the communicator, as long as it has nodes of it.
std::shared_ptr<void> node_of(ncclComm_t comm) {
  const std::lock_guard lock(comm->all->mutex);
  ++comm->kernels->graphs;
  return {nullptr, [all = comm->all, kernels = comm->kernels](void*) {
            const std::lock_guard unlocking(all->mutex);
            --kernels->graphs;
            all->moved.notify_all();
          }};
}

// The memory that an operation reads and writes on one rank.
void touch(const Part& part, int rank, int ranks, std::vector<Touch>& touches) {
  const bool is_root = part.root == rank;
  const auto of_all = part.bytes() * static_cast<std::size_t>(ranks);
  if (part.kind != Part::Kind::kBroadcast || is_root)
    touches.push_back(
        reads(part.from, part.kind == Part::Kind::kReduceScatter ? of_all : part.bytes()));
  switch (part.kind) {
    case Part::Kind::kGather:
      touches.push_back(writes(part.to, of_all));
      return;
    case Part::Kind::kReduceToRoot:
      if (is_root) touches.push_back(writes(part.to, part.bytes()));
      return;
    case Part::Kind::kBroadcast:
      if (!is_root) touches.push_back(writes(part.to, part.bytes()));
      return;
    case Part::Kind::kReduce:
    case Part::Kind::kReduceScatter:
    case Part::Kind::kTransfer:
      touches.push_back(writes(part.to, part.bytes()));
  }
}

void put_in_stream(ncclComm_t comm, const std::vector<Piece>& pieces, cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  cudaStreamIsCapturing(stream, &status);
  const bool captured = status != cudaStreamCaptureStatusNone;
  auto node = captured ? node_of(comm) : nullptr;
  std::vector<Touch> touches;
  for (const Piece& piece : pieces) touch(piece.part, comm->rank, comm->ranks, touches);
  const auto turns = std::make_shared<Turns>();
  Task launched = task([all = comm->all, kernels = comm->kernels, rank = comm->rank, pieces, node,
                        turns] { kernel(*all, *kernels, rank, pieces, *turns); },
                       touches);
  launched.enter = [all = comm->all, kernels = comm->kernels, turns] {
    const std::lock_guard lock(all->mutex);
    ++kernels->launched;
    turns->push_back(++kernels->turns);
  };
  add_task(stream_of(stream), std::move(launched));
}

// The calls between ncclGroupStart and ncclGroupEnd, which begin together.
struct Grouped {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Piece> pieces;
};
thread_local Grouped grouped;

// It begins when NCCL has settled, or with the others of its group.
void begin(ncclComm_t comm, std::vector<Piece> pieces, cudaStream_t stream) {
  comm->looks_left = controls().looks_to_settle;
  comm->deferred = [=] { put_in_stream(comm, pieces, stream); };
}

// Says what NCCL answers to memory or a stream that is not of its GPU.
ncclResult_t check_places(ncclComm_t comm, const Part& part, cudaStream_t stream) {
  if (stream_of(stream).gpu != comm->gpu) {
    ++controls().wrong_device;
    return ncclUnhandledCudaError;
  }
  for (const void* memory : {part.from, static_cast<const void*>(part.to)}) {
    if (memory == nullptr || part.count == 0) continue;
    const auto block = block_with(memory);
    if (block != nullptr && block->gpu == comm->gpu) continue;
    ++controls().wrong_device;
    return ncclInvalidArgument;
  }
  return ncclSuccess;
}

bool is_registered(ncclComm_t comm, const Part& part) {
  const void* const memory = part.from != nullptr ? part.from : part.to;
  return std::ranges::any_of(comm->registered, [&](const auto& entry) {
    const auto* begin = static_cast<const std::byte*>(entry.first);
    return memory >= begin && memory < begin + entry.second;
  });
}

ncclResult_t launch(ncclComm_t comm, Piece piece, cudaStream_t stream) {
  const Call call(comm);
  if (!call.may_begin()) return ncclInvalidArgument;
  if (comm->revoked || comm->finalized) return ncclInvalidUsage;
  if (const auto error = check_places(comm, piece.part, stream); error != ncclSuccess) return error;
  piece.part.registered = is_registered(comm, piece.part);
  ++controls().launches;
  if (grouped.depth > 0) {
    if (grouped.comm != nullptr && grouped.comm != comm) return ncclInvalidUsage;
    grouped.comm = comm;
    grouped.stream = stream;
    grouped.pieces.push_back(std::move(piece));
    return ncclSuccess;
  }
  begin(comm, {std::move(piece)}, stream);
  return ncclInProgress;
}

ncclResult_t launch_for_all(ncclComm_t comm, const Part& part, cudaStream_t stream) {
  return launch(comm, {{-1, -1}, static_cast<std::size_t>(comm->ranks), part}, stream);
}

// Kernels that run end now, and those that come later do nothing.
void end_kernels(ncclComm_t comm) {
  const std::lock_guard lock(comm->all->mutex);
  comm->kernels->ended = true;
  comm->all->moved.notify_all();
}

// As an abort does: its stream waits for those of the launches. Then it waits for graphs, and to
// free memory for all that the GPU does.
void leave_streams(ncclComm_t comm) {
  const bool formed = is_formed(comm);
  {
    std::unique_lock lock(comm->all->mutex);
    comm->all->moved.wait(lock, [=] {
      return comm->kernels->launched == 0 && (!formed || comm->kernels->graphs == 0);
    });
  }
  wait_for_gpu(comm->gpu);
}

ncclResult_t revoke(ncclComm_t comm, int /*flags*/) {
  const Call call(comm);
  ++controls().revokes;
  if (!is_formed(comm)) ++controls().unformed_revokes;
  comm->revoked = true;
  comm->deferred.reset();
  if (controls().revoke_hangs) {
    comm->looks_left = 1 << 30;
    return ncclInProgress;
  }
  end_kernels(comm);
  comm->looks_left = controls().looks_to_settle;
  return ncclInProgress;
}

ncclResult_t add(ncclComm_t comm, void* memory, std::size_t bytes, void** handle) {
  const Call call(comm);
  if (!call.may_begin()) return ncclInvalidArgument;
  if (controls().refuses_to_register != ncclSuccess) return controls().refuses_to_register;
  const auto block = block_with(memory);
  if (block == nullptr || block->gpu != comm->gpu) return ncclInvalidArgument;
  comm->registered.emplace(*handle = memory, bytes);
  ++controls().registered;
  ++controls().registrations;
  return ncclSuccess;
}

ncclResult_t remove(ncclComm_t comm, void* handle) {
  const Call call(comm);
  if (!call.may_begin()) return ncclInvalidArgument;
  if (comm->registered.erase(handle) == 0) return ncclInvalidUsage;
  --controls().registered;
  return ncclSuccess;
}

ncclResult_t allocate(void** memory, std::size_t bytes) {
  return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// Unmaps at once (NCCL 2.28, alloc.h), while cudaFree waits.
ncclResult_t free_memory(void* memory) {
  if (unsafe_call() != cudaSuccess) return ncclUnhandledCudaError;
  const auto block = take_block(memory);
  if (block == nullptr) return ncclInvalidArgument;
  if (is_used(*block)) ++controls().freed_under_work;
  return ncclSuccess;
}

// Returns false while a rank has not come.
bool make_group(ncclComm_t comm) {
  const std::lock_guard lock(comm->all->mutex);
  Ranks::Split& split = comm->all->splits[comm->splits];
  if (static_cast<int>(split.requests.size()) < comm->ranks) return false;
  ncclComm_t* const place = std::exchange(comm->group_of, nullptr);
  const auto [color, key] = split.requests.at(comm->rank);
  if (color < 0) return true;
  int rank = 0;
  int ranks = 0;
  for (const auto& [other, request] : split.requests) {
    if (request.first != color) continue;
    ++ranks;
    if (std::pair(request.second, other) < std::pair(key, comm->rank)) ++rank;
  }
  auto& group = split.groups[color];
  if (group == nullptr) group = std::make_shared<Ranks>();
  const std::lock_guard joining(group->mutex);
  ++group->joined;
  *place = new ncclComm{.all = group, .rank = rank, .ranks = ranks, .gpu = comm->gpu};
  ++controls().communicators;
  return true;
}

ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t* group,
                   ncclConfig_t* /*config*/) {
  const Call call(comm);
  if (!call.may_begin()) return ncclInvalidArgument;
  if (comm->revoked) return ncclInvalidUsage;
  ++controls().splits;
  const std::lock_guard lock(comm->all->mutex);
  comm->all->splits[++comm->splits].requests[comm->rank] = {color, key};
  comm->group_of = group;
  comm->looks_left = controls().looks_to_settle;
  return ncclInProgress;
}

}  // namespace

ddprun::worker::NcclOptional ddprun::worker::sim::all_optional() {
  return {.revoke = revoke,
          .split = split,
          .allocate = allocate,
          .free = free_memory,
          .add = add,
          .remove = remove};
}

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  if (result == ncclRemoteError) return "remote process exited or there was a network error";
  if (result == ncclInvalidArgument) return "invalid argument";
  return result == ncclInvalidUsage ? "invalid usage" : "an error";
}
const char* ncclGetLastError(ncclComm_t /*comm*/) { return "as the test wants"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<unsigned> made = 0;
  const unsigned number = ++made;
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* /*config*/) {
  const std::lock_guard lock(ids_mutex);
  auto& all = ids()[std::string(id.internal, sizeof id.internal)];
  if (all == nullptr) all = std::make_shared<Ranks>();
  *comm = new ncclComm{.all = all, .rank = rank, .ranks = ranks, .gpu = this_gpu()};
  ++controls().communicators;
  const std::lock_guard joining(all->mutex);
  ++all->joined;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Call call(comm);
  *error = controls().async_error;
  if (*error != ncclSuccess) return ncclSuccess;
  *error = ncclInProgress;
  if (!is_formed(comm)) return ncclSuccess;
  if (comm->finalized) {
    const std::lock_guard lock(comm->all->mutex);
    if (comm->kernels->launched > 0 || comm->kernels->graphs > 0) return ncclSuccess;
  }
  if (comm->revoked) {
    const std::lock_guard lock(comm->all->mutex);
    if (comm->kernels->launched > 0) return ncclSuccess;
  }
  if (comm->group_of != nullptr && !make_group(comm)) return ncclSuccess;
  if (!controls().settles && comm->looks_left > 0) return ncclSuccess;
  if (comm->looks_left > 0 && --comm->looks_left > 0) return ncclSuccess;
  if (comm->deferred) {
    (*comm->deferred)();
    comm->deferred.reset();
  }
  *error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Call call(comm);
  ++controls().aborts;
  if (!comm->revoked) ++controls().aborts_before_a_revoke;
  while (controls().abort_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  end_kernels(comm);
  leave_streams(comm);
  controls().registered -= static_cast<int>(comm->registered.size());
  call.forget();
  delete comm;
  --controls().communicators;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Call call(comm);
  if (!call.may_begin()) return ncclInvalidArgument;
  if (comm->revoked) return ncclInvalidUsage;
  comm->finalized = true;
  comm->looks_left = controls().looks_to_settle;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Call call(comm);
  if (!call.may_begin()) return ncclInvalidArgument;
  ++controls().destroys;
  controls().left_registered += static_cast<int>(comm->registered.size());
  call.forget();
  delete comm;
  --controls().communicators;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return launch_for_all(comm, {Part::Kind::kReduce, from, to, count, type, 0, reduction}, stream);
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                        ncclRedOp_t reduction, int root, ncclComm_t comm, cudaStream_t stream) {
  return launch_for_all(comm, {Part::Kind::kReduceToRoot, from, to, count, type, root, reduction},
                        stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return launch_for_all(comm, {Part::Kind::kReduceScatter, from, to, count, type, 0, reduction},
                        stream);
}

ncclResult_t ncclGroupStart() {
  ++grouped.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--grouped.depth > 0 || grouped.pieces.empty()) return ncclSuccess;
  ++controls().groups;
  begin(std::exchange(grouped.comm, nullptr), std::exchange(grouped.pieces, {}), grouped.stream);
  return ncclInProgress;
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return launch_for_all(comm, {Part::Kind::kGather, from, to, count, type}, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  if (root < 0 || root >= comm->ranks) return ncclInvalidArgument;
  return launch_for_all(comm, {Part::Kind::kBroadcast, from, to, count, type, root}, stream);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return launch(
      comm,
      {{comm->rank, peer}, 2, {Part::Kind::kTransfer, from, nullptr, count, type, comm->rank}},
      stream);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return launch(comm,
                {{peer, comm->rank}, 2, {Part::Kind::kTransfer, nullptr, to, count, type, peer}},
                stream);
}

}  // extern "C"
