#include "worker/nccl/nccl_collective.h"

#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "worker/collective/split.h"
#include "worker/nccl/cuda_parts.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Between two looks. The first pause is short, as most sums take microseconds. Later ones are long,
// so that a wait for a slow rank does not burn a core.
constexpr std::chrono::microseconds kFirstPause{20};
constexpr std::chrono::microseconds kLongestPause{1000};

// ncclCommFinalize may wait for a peer that is gone: after so long we abort instead.
constexpr std::chrono::seconds kFarewell{10};

ncclDataType_t nccl_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return ncclFloat32;
    case Dtype::kFloat64:
      return ncclFloat64;
    case Dtype::kFloat16:
      return ncclFloat16;
    case Dtype::kBFloat16:
      return ncclBfloat16;
    case Dtype::kInt32:
      return ncclInt32;
    case Dtype::kInt64:
      return ncclInt64;
    case Dtype::kInt8:
      return ncclInt8;
    case Dtype::kUInt8:
      break;
  }
  return ncclUint8;
}

ncclRedOp_t nccl_operation(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kWideSum:
      return ncclSum;
    case Reduction::kAverage:
      return ncclAvg;
    case Reduction::kMin:
      return ncclMin;
    case Reduction::kMax:
      break;
  }
  return ncclMax;
}

class NcclCollective final : public Collective {
 public:
  explicit NcclCollective(const NcclJob& job)
      : job_(job),
        launched_(job.last_ticket),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true,
                                             static_cast<c10::DeviceIndex>(job.local_rank))) {}
  NcclCollective(const NcclCollective&) = delete;
  NcclCollective& operator=(const NcclCollective&) = delete;
  NcclCollective(NcclCollective&&) = delete;
  NcclCollective& operator=(NcclCollective&&) = delete;
  ~NcclCollective() override { leave(); }

  // Forms the communicator and runs one collective: NCCL connects to the peers only in the first
  // one, and that shall fail here, within the deadline of the bring-up.
  void form(const ncclUniqueId& id);

  int rank() const override { return job_.rank; }
  int world_size() const override { return job_.ranks; }
  Device device() const override { return Device::kCuda; }
  std::string_view name() const override { return "nccl"; }

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  Ticket launch(Flat flat, Reduction reduction) override;
  void progress() override { check_health("sum"); }
  void wait(Ticket ticket) override;
  void broadcast(Flat flat, int root) override;
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override;
  void barrier() override { all_gather({}); }
  void monitored_barrier(std::chrono::milliseconds /*limit*/) override {
    throw CollectiveError("NCCL has no monitored barrier: it cannot tell which rank is late");
  }
  void send(Flat flat, int to) override;
  void receive(Flat flat, int from) override;
  std::unique_ptr<Collective> split(int color, int key) override;
  void reset() override {
    throw CollectiveError("NCCL has no reset(): start the job anew from a checkpoint");
  }

 private:
  // Weak: the caller alone decides how long its memory lives.
  struct Allocation {
    std::weak_ptr<std::byte> memory;
    std::size_t bytes;
  };
  struct Pending {
    Ticket ticket;
    std::shared_ptr<std::byte> memory;  // the caller may have let go of it
    Event done;
  };

  ncclResult_t state() const;
  void check_health(const char* doing);
  void settle(ncclResult_t result, const char* doing);
  [[noreturn]] void fail(const std::string& why);
  template <typename Done>
  void poll(const char* doing, Done done);
  std::shared_ptr<std::byte> owner_of(const Flat& flat) const;
  void follow_current_stream();
  void complete(const char* doing);
  std::vector<std::byte> gather_equal(std::span<const std::byte> mine);
  void leave() noexcept;

  NcclJob job_;
  Ticket launched_;
  c10::cuda::CUDAStream stream_;  // from a shared pool; kept for life
  ncclComm_t comm_ = nullptr;
  bool failed_ = false;
  std::vector<Allocation> allocations_;
  std::deque<Pending> pending_;  // in ticket order
};

void NcclCollective::form(const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  settle(ncclCommInitRankConfig(&comm_, job_.ranks, id, job_.rank, &config), "NCCL bring-up");
  barrier();
}

ncclResult_t NcclCollective::state() const {
  ncclResult_t async = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &async);
  return asked == ncclSuccess ? async : asked;
}

void NcclCollective::check_health(const char* doing) {
  const ncclResult_t now = state();
  if (now == ncclSuccess || now == ncclInProgress) return;
  fail(fmt::format("rank {}: {}: NCCL: {}: {}", job_.rank, doing, ncclGetErrorString(now),
                   ncclGetLastError(comm_)));
}

// Asks `done` again and again, with pauses. Fails at an error of NCCL's or past the deadline.
template <typename Done>
void NcclCollective::poll(const char* doing, Done done) {
  const auto deadline = Clock::now() + job_.timeout;
  auto pause = kFirstPause;
  while (!done()) {
    check_health(doing);
    if (Clock::now() > deadline) {
      fail(
          fmt::format("rank {}: {}: not complete after {} s: another rank has not come, or the "
                      "transport hangs (NCCL_DEBUG=INFO says more)",
                      job_.rank, doing, std::chrono::duration<double>(job_.timeout).count()));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

// A non-blocking communicator answers ncclInProgress. Until that has changed, no other NCCL call on
// it is allowed (NCCL user guide, ncclCommGetAsyncError).
void NcclCollective::settle(ncclResult_t result, const char* doing) {
  if (result != ncclSuccess && result != ncclInProgress) {
    fail(fmt::format("rank {}: {}: NCCL: {}", job_.rank, doing, ncclGetErrorString(result)));
  }
  if (comm_ != nullptr) {
    poll(doing, [this] { return state() == ncclSuccess; });
  }
}

void NcclCollective::fail(const std::string& why) {
  // A kernel that still waits for a peer would hold the stream for ever; the abort ends it.
  if (comm_ != nullptr && !std::exchange(failed_, true)) ncclCommAbort(comm_);
  comm_ = nullptr;
  throw CollectiveError(why);
}

// Our stream waits for what the program's stream holds: kernels that write the gradients.
void NcclCollective::follow_current_stream() {
  if (failed_) throw CollectiveError("the collective has failed before");
  Event ready;
  ready.record(c10::cuda::getCurrentCUDAStream(stream_.device_index()).stream());
  ready.hold(stream_.stream());
}

void NcclCollective::complete(const char* doing) {
  Event done;
  done.record(stream_.stream());
  poll(doing, [&done] { return done.passed(); });
}

std::shared_ptr<std::byte> NcclCollective::allocate(std::size_t bytes) {
  std::erase_if(allocations_, [](const Allocation& made) { return made.memory.expired(); });
  auto memory = device_memory(bytes);
  allocations_.push_back({memory, bytes});
  return memory;
}

std::shared_ptr<std::byte> NcclCollective::owner_of(const Flat& flat) const {
  const auto* data = static_cast<const std::byte*>(flat.data);
  for (const Allocation& made : allocations_) {
    auto memory = made.memory.lock();
    if (memory == nullptr || data < memory.get()) continue;
    if (data + flat.bytes() <= memory.get() + made.bytes) return memory;
  }
  throw CollectiveError("sum of memory that did not come from allocate()");
}

Ticket NcclCollective::launch(Flat flat, Reduction reduction) {
  auto memory = owner_of(flat);
  follow_current_stream();
  settle(ncclAllReduce(flat.data, flat.data, flat.count, nccl_type(flat.dtype),
                       nccl_operation(reduction), comm_, stream_.stream()),
         "launch of a sum");
  Pending& launched = pending_.emplace_back(Pending{++launched_, std::move(memory), Event()});
  launched.done.record(stream_.stream());
  return launched_;
}

void NcclCollective::wait(Ticket ticket) {
  while (!pending_.empty() && reached(ticket, pending_.front().ticket)) {
    poll("sum", [this] { return pending_.front().done.passed(); });
    pending_.pop_front();
  }
}

void NcclCollective::broadcast(Flat flat, int root) {
  follow_current_stream();
  settle(
      ncclBroadcast(flat.data, flat.data, flat.bytes(), ncclUint8, root, comm_, stream_.stream()),
      "broadcast");
  complete("broadcast");
}

void NcclCollective::send(Flat flat, int to) {
  other_rank(to);
  follow_current_stream();
  settle(ncclSend(flat.data, flat.bytes(), ncclUint8, to, comm_, stream_.stream()), "send");
  complete("send");
}

void NcclCollective::receive(Flat flat, int from) {
  other_rank(from);
  follow_current_stream();
  settle(ncclRecv(flat.data, flat.bytes(), ncclUint8, from, comm_, stream_.stream()), "receive");
  complete("receive");
}

std::unique_ptr<Collective> NcclCollective::split(int color, int key) {
  const auto join = [this](const GroupPlace& place, Exchange& exchange) {
    return join_nccl({.rank = place.rank,
                      .ranks = place.ranks,
                      .local_rank = job_.local_rank,
                      .timeout = job_.timeout},
                     exchange);
  };
  return split_group(*this, {color, key}, join);
}

// ncclAllGather wants equal lengths, so `mine` must have the same length on all ranks. Returns all
// of them in a row, by rank.
std::vector<std::byte> NcclCollective::gather_equal(std::span<const std::byte> mine) {
  const auto ranks = static_cast<std::size_t>(job_.ranks);
  const auto all = device_memory(mine.size() * ranks);
  std::byte* own = all.get() + mine.size() * static_cast<std::size_t>(job_.rank);
  check_cuda(
      cudaMemcpyAsync(own, mine.data(), mine.size(), cudaMemcpyHostToDevice, stream_.stream()),
      "copy to the GPU");
  settle(ncclAllGather(own, all.get(), mine.size(), ncclUint8, comm_, stream_.stream()),
         "all-gather");
  complete("all-gather");
  std::vector<std::byte> host(mine.size() * ranks);
  check_cuda(cudaMemcpy(host.data(), all.get(), host.size(), cudaMemcpyDeviceToHost),
             "copy from the GPU");
  return host;
}

// Gathers the lengths first, then the bytes, padded to the longest.
std::vector<std::vector<std::byte>> NcclCollective::all_gather(std::span<const std::byte> mine) {
  check_gather_size(mine.size());
  if (failed_) throw CollectiveError("the collective has failed before");
  const std::uint64_t length = mine.size();
  const auto lengths_blob = gather_equal(std::as_bytes(std::span(&length, 1)));
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(job_.ranks));
  std::memcpy(lengths.data(), lengths_blob.data(), lengths_blob.size());
  const std::size_t longest = *std::ranges::max_element(lengths);
  std::vector<std::vector<std::byte>> blobs(lengths.size());
  if (longest == 0) return blobs;
  std::vector<std::byte> padded(mine.begin(), mine.end());
  padded.resize(longest);
  const auto all = gather_equal(padded);
  for (std::size_t peer = 0; peer < blobs.size(); ++peer) {
    const std::byte* blob = all.data() + peer * longest;
    blobs[peer].assign(blob, blob + lengths[peer]);
  }
  return blobs;
}

void NcclCollective::leave() noexcept {
  if (comm_ == nullptr) return;
  ncclResult_t farewell = ncclCommFinalize(comm_);
  const auto deadline = Clock::now() + kFarewell;
  while (farewell == ncclInProgress && Clock::now() < deadline) {
    std::this_thread::sleep_for(kLongestPause);
    farewell = state();
  }
  if (farewell == ncclSuccess)
    ncclCommDestroy(comm_);
  else
    ncclCommAbort(comm_);
}

// An announced text that begins so is an error line of rank 0; an id in hex never does.
constexpr char kFailureMark = '!';

std::string to_hex(const ncclUniqueId& id) {
  std::string text;
  for (const char byte : id.internal)
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

Result<ncclUniqueId> from_hex(const std::string& text) {
  ncclUniqueId id{};
  if (text.starts_with(kFailureMark)) return Error(ErrorCode::kSystem, text.substr(1));
  if (text.size() != 2 * sizeof id.internal) {
    return Error(ErrorCode::kProtocol, "rank 0 announced something that is no NCCL id");
  }
  for (std::size_t i = 0; i < sizeof id.internal; ++i) {
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

// Rank 0 makes the id when all ranks have arrived: ncclGetUniqueId opens a socket and waits there
// for the ranks, in a thread of its own. It should not wait for ranks that never come.
Result<ncclUniqueId> agree_on_id(const NcclJob& job, Exchange& exchange) {
  if (const auto all_here = exchange.arrive(); !all_here) return all_here.error();
  if (job.rank != 0) {
    const auto text = exchange.hear();
    if (!text) return text.error();
    return from_hex(*text);
  }
  ncclUniqueId id{};
  const ncclResult_t made = ncclGetUniqueId(&id);
  const std::string text =
      made == ncclSuccess ? to_hex(id)
                          : fmt::format("{}NCCL id: {}", kFailureMark, ncclGetErrorString(made));
  const auto told = exchange.announce(text);
  if (!told) return told.error();
  return from_hex(text);
}

}  // namespace

std::string why_no_gpu() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return fmt::format("no GPU: CUDA: {}", cudaGetErrorString(status));
  return count == 0 ? "no GPU: CUDA finds none" : "";
}

Result<std::unique_ptr<Collective>> join_nccl(const NcclJob& job, Exchange& exchange) {
  if (std::string why = why_no_gpu(); !why.empty()) {
    return Error(ErrorCode::kInvalidArgument, std::move(why));
  }
  if (const cudaError_t set = cudaSetDevice(job.local_rank); set != cudaSuccess) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("GPU {} for local rank {}: {}", job.local_rank, job.local_rank,
                             cudaGetErrorString(set)));
  }
  const auto id = agree_on_id(job, exchange);
  if (!id) return id.error();
  try {
    auto collective = std::make_unique<NcclCollective>(job);
    collective->form(*id);
    return std::unique_ptr<Collective>(std::move(collective));
  } catch (const CollectiveError& error) {
    return Error(ErrorCode::kUnavailable, error.what());
  }
}

}  // namespace ddprun::worker
