// NCCL on the simulated GPU. Collective operations of a communicator meet by their number.
#include "tests/worker/collective/nccl/simulated_nccl.h"

#include <nccl.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/worker/collective/nccl/simulated_gpu.h"

namespace ddprun::worker::sim {
namespace {

// The part of one rank in an operation.
struct Part {
  enum class Kind { kReduce, kReduceToRoot, kGather, kBroadcast, kTransfer } kind;
  const void* from;
  void* to;
  std::size_t bytes;
  int root;  // kBroadcast, kReduceToRoot, and the sender of a transfer
  ncclRedOp_t reduction = ncclSum;
};

// The ranks of one id.
struct Group {
  std::mutex mutex;
  std::condition_variable moved;
  int joined = 0;
  using Place = std::tuple<int, int, int>;  // sender and receiver, or -1; a number
  std::map<Place, std::map<int, Part>> parts;
  std::set<Place> done;
};

}  // namespace
}  // namespace ddprun::worker::sim

using namespace ddprun::worker::sim;

// The handle that NCCL's users have. Kernels own what they use of it.
struct ncclComm {
  std::shared_ptr<Group> group;
  int rank;
  int ranks;
  std::shared_ptr<bool> ended = std::make_shared<bool>(false);  // under group->mutex
  std::shared_ptr<int> running = std::make_shared<int>(0);      // kernels; under group->mutex
  int looks_left = 0;                                           // until it has settled
  std::optional<std::function<void()>> deferred{};              // the launch, until then
  std::map<Group::Place, int> numbers{};
  std::set<void*> registered{};
  bool revoked = false;
  std::atomic<int> calls = 0;
};

namespace {

constexpr int kLooksToSettle = 2;

std::mutex groups_mutex;
std::map<std::string, std::shared_ptr<Group>>& groups() {
  static std::map<std::string, std::shared_ptr<Group>> all;
  return all;
}

// Marks a call on a communicator.
class Call {
 public:
  Call(ncclComm_t comm, bool needs_settled) : comm_(comm) {
    if (comm->calls.fetch_add(1) != 0) ++controls().calls_at_once;
    if (needs_settled && comm->looks_left != 0) ++controls().calls_before_settled;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (comm_ != nullptr) comm_->calls.fetch_sub(1);
  }
  void forget() { comm_ = nullptr; }  // it is deleted

 private:
  ncclComm_t comm_;
};

void reduce(std::map<int, Part>& parts) {
  const std::size_t count = parts.begin()->second.bytes / sizeof(float);
  std::vector<float> sum(count, 0);
  for (const auto& [rank, part] : parts) {
    for (std::size_t i = 0; i < count; ++i) sum[i] += static_cast<const float*>(part.from)[i];
  }
  const bool average = parts.begin()->second.reduction == ncclAvg;
  for (float& value : sum) value /= average ? static_cast<float>(parts.size()) : 1.0F;
  for (const auto& [rank, part] : parts) {
    if (part.kind == Part::Kind::kReduce || part.root == rank)
      std::memcpy(part.to, sum.data(), part.bytes);
  }
}

void gather(std::map<int, Part>& parts) {
  for (const auto& [rank, to] : parts) {
    for (const auto& [other, from] : parts) {
      auto* place = static_cast<std::byte*>(to.to) + static_cast<std::size_t>(other) * from.bytes;
      std::memmove(place, from.from, from.bytes);
    }
  }
}

void copy_from_root(std::map<int, Part>& parts) {
  const Part& root = parts.at(parts.begin()->second.root);
  for (const auto& [rank, part] : parts) {
    if (rank != root.root) std::memcpy(part.to, root.from, root.bytes);
  }
}

bool alike(const std::map<int, Part>& parts) {
  const Part& first = parts.begin()->second;
  return std::ranges::all_of(parts, [&](const auto& entry) {
    return entry.second.kind == first.kind && entry.second.bytes == first.bytes &&
           entry.second.root == first.root;
  });
}

void perform(std::map<int, Part>& parts) {
  switch (parts.begin()->second.kind) {
    case Part::Kind::kReduce:
    case Part::Kind::kReduceToRoot:
      return reduce(parts);
    case Part::Kind::kGather:
      return gather(parts);
    case Part::Kind::kBroadcast:
    case Part::Kind::kTransfer:
      return copy_from_root(parts);
  }
}

// Waits for the other ranks. Ranks that bring different things wait until they are aborted.
void kernel(Group& group, const Group::Place& place, int rank, std::size_t needed, const Part& part,
            const bool& ended) {
  std::unique_lock lock(group.mutex);
  auto& parts = group.parts[place];
  parts.emplace(rank, part);
  while (!ended && !group.done.contains(place)) {
    if (parts.size() == needed && alike(parts) && !controls().hang) {
      perform(parts);
      group.done.insert(place);
      group.moved.notify_all();
      break;
    }
    group.moved.wait_for(lock, std::chrono::milliseconds(1));
  }
}

// The calls between ncclGroupStart and ncclGroupEnd, which begin together.
struct Grouped {
  int depth = 0;
  ncclComm_t comm = nullptr;
  std::vector<std::function<void()>> launches;
};
thread_local Grouped grouped;

// It begins when NCCL has settled, or with the others of its group.
void begin(ncclComm_t comm, std::function<void()> launch) {
  if (grouped.depth > 0) {
    grouped.comm = comm;
    grouped.launches.push_back(std::move(launch));
    return;
  }
  comm->looks_left = kLooksToSettle;
  comm->deferred = std::move(launch);
}

ncclResult_t launch(ncclComm_t comm, std::pair<int, int> transfer, std::size_t needed, Part part,
                    cudaStream_t stream) {
  const Call call(comm, true);
  if (comm->revoked) return ncclInvalidUsage;
  const Group::Place counter{transfer.first, transfer.second, 0};
  const Group::Place place{transfer.first, transfer.second, ++comm->numbers[counter]};
  begin(comm,
        [=, group = comm->group, rank = comm->rank, ended = comm->ended, running = comm->running] {
          run_on(stream, [=] {
            {
              const std::lock_guard lock(group->mutex);
              ++*running;
            }
            kernel(*group, place, rank, needed, part, *ended);
            const std::lock_guard lock(group->mutex);
            --*running;
            group->moved.notify_all();
          });
        });
  return ncclInProgress;
}

ncclResult_t launch_for_all(ncclComm_t comm, const Part& part, cudaStream_t stream) {
  return launch(comm, {-1, -1}, static_cast<std::size_t>(comm->ranks), part, stream);
}

// Kernels that run end now, and those that come later do nothing.
void end_kernels(ncclComm_t comm) {
  std::unique_lock lock(comm->group->mutex);
  *comm->ended = true;
  comm->group->moved.notify_all();
  comm->group->moved.wait(lock, [comm] { return *comm->running == 0; });
}

ncclResult_t revoke(ncclComm_t comm, int /*flags*/) {
  const Call call(comm, false);
  ++controls().revokes;
  comm->revoked = true;
  if (controls().revoke_hangs) {
    comm->looks_left = 1 << 30;
    return ncclInProgress;
  }
  end_kernels(comm);
  comm->looks_left = kLooksToSettle;
  return ncclInProgress;
}

ncclResult_t add(ncclComm_t comm, void* memory, std::size_t /*bytes*/, void** handle) {
  const Call call(comm, true);
  if (controls().refuses_to_register != ncclSuccess) return controls().refuses_to_register;
  comm->registered.insert(*handle = memory);
  ++controls().registered;
  ++controls().registrations;
  return ncclSuccess;
}

ncclResult_t remove(ncclComm_t comm, void* handle) {
  const Call call(comm, true);
  if (comm->registered.erase(handle) == 0) return ncclInvalidUsage;
  --controls().registered;
  return ncclSuccess;
}

ncclResult_t allocate(void** memory, std::size_t bytes) {
  *memory = allocate_block(bytes);
  return ncclSuccess;
}

ncclResult_t free_memory(void* memory) {
  free_block(memory);
  return ncclSuccess;
}

}  // namespace

ddprun::worker::NcclOptional ddprun::worker::sim::all_optional() {
  return {
      .revoke = revoke, .allocate = allocate, .free = free_memory, .add = add, .remove = remove};
}

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  if (result == ncclRemoteError) return "remote process exited or there was a network error";
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
  const std::lock_guard lock(groups_mutex);
  auto& group = groups()[std::string(id.internal, sizeof id.internal)];
  if (group == nullptr) group = std::make_shared<Group>();
  *comm = new ncclComm{.group = group, .rank = rank, .ranks = ranks};
  const std::lock_guard joining(group->mutex);
  ++group->joined;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Call call(comm, false);
  *error = controls().async_error;
  if (*error != ncclSuccess) return ncclSuccess;
  const std::lock_guard lock(comm->group->mutex);
  if (comm->group->joined < comm->ranks) {
    *error = ncclInProgress;
    return ncclSuccess;
  }
  if (comm->looks_left > 0 && --comm->looks_left > 0) *error = ncclInProgress;
  if (comm->looks_left == 0 && comm->deferred) {
    (*comm->deferred)();
    comm->deferred.reset();
  }
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Call call(comm, false);
  ++controls().aborts;
  if (!comm->revoked) ++controls().aborts_before_a_revoke;
  end_kernels(comm);
  controls().registered -= static_cast<int>(comm->registered.size());
  call.forget();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Call call(comm, true);
  return comm->revoked ? ncclInvalidUsage : ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Call call(comm, true);
  ++controls().destroys;
  controls().left_registered += static_cast<int>(comm->registered.size());
  call.forget();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t /*type*/,
                           ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return launch_for_all(comm, {Part::Kind::kReduce, from, to, count * sizeof(float), 0, reduction},
                        stream);
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t /*type*/,
                        ncclRedOp_t reduction, int root, ncclComm_t comm, cudaStream_t stream) {
  return launch_for_all(
      comm, {Part::Kind::kReduceToRoot, from, to, count * sizeof(float), root, reduction}, stream);
}

ncclResult_t ncclGroupStart() {
  ++grouped.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--grouped.depth > 0 || grouped.launches.empty()) return ncclSuccess;
  begin(grouped.comm, [launches = std::exchange(grouped.launches, {})] {
    for (const auto& launch : launches) launch();
  });
  return ncclInProgress;
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t /*type*/,
                           ncclComm_t comm, cudaStream_t stream) {
  return launch_for_all(comm, {Part::Kind::kGather, from, to, count, 0}, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * (type == ncclFloat32 ? sizeof(float) : 1);
  return launch_for_all(comm, {Part::Kind::kBroadcast, from, to, bytes, root}, stream);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t /*type*/, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return launch(comm, {comm->rank, peer}, 2,
                {Part::Kind::kTransfer, from, nullptr, count, comm->rank}, stream);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t /*type*/, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return launch(comm, {peer, comm->rank}, 2, {Part::Kind::kTransfer, nullptr, to, count, peer},
                stream);
}

}  // extern "C"
