// The operations of the NCCL collective. nccl_collective.h says what each of them promises. It
// needs CUDA's runtime and NCCL, and no LibTorch: tests run it on a GPU that they simulate.
// join_nccl_on() makes it; the program owns it.
#pragma once

#include <nccl.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/collective/core/parts.h"
#include "worker/collective/core/split.h"
#include "worker/collective/nccl/communicator.h"
#include "worker/collective/nccl/cuda_parts.h"
#include "worker/collective/nccl/dropped_memory.h"
#include "worker/collective/nccl/nccl_join.h"
#include "worker/collective/nccl/nccl_memory.h"
#include "worker/collective/nccl/nccl_watcher.h"

namespace ddprun::worker {

class NcclRanks final : public Collective {
 public:
  explicit NcclRanks(const NcclParts& parts);
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;
  NcclRanks(NcclRanks&&) = delete;
  NcclRanks& operator=(NcclRanks&&) = delete;
  ~NcclRanks() override;

  // Forms the communicator and runs one collective. NCCL connects to the peers only in the first
  // one. That shall fail here, within the deadline of the bring-up. Ranks that wait compare what
  // they do over `board`, if there is one.
  void form(const ncclUniqueId& id, std::unique_ptr<DesyncBoard> board);
  // The same with a group that NCCL has split off, on all of its ranks.
  void adopt(ncclComm_t group);

  int rank() const override { return job().rank; }
  int world_size() const override { return job().ranks; }
  Device device() const override { return Device::kCuda; }
  int gpu() const override { return job().gpu; }
  std::string_view name() const override { return "nccl"; }
  bool is_capturing() const override;

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
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
  void progress() override { check(); }
  void check() override;
  void wait(Ticket ticket) override;
  void broadcast(Flat flat, int root) override;
  std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> mine) override;
  void barrier() override;
  void monitored_barrier(std::chrono::milliseconds /*limit*/) override {
    throw CollectiveError("NCCL has no monitored barrier: it cannot tell which rank is late");
  }
  void send(Flat flat, int to) override;
  void receive(Flat flat, int from) override;
  std::unique_ptr<Collective> split(int color, int key) override;
  std::unique_ptr<Collective> on_gpu(int gpu) override;
  void reset() override {
    throw CollectiveError("NCCL has no reset(): start the job anew from a checkpoint");
  }
  std::string flight_record() const override { return watcher_->flight_record(); }

 private:
  struct Sum {
    Ticket ticket;
    std::shared_ptr<std::byte> memory;  // the caller may have let go of it
    std::shared_ptr<NcclWatcher::Work> work;
    std::optional<Event> captured;  // its end in a capture; then no work

    const Event& done() const { return captured ? *captured : work->done(); }
  };
  // A broadcast, send or receive of bytes, as this rank takes part in it.
  struct Movement {
    OperationKind kind;
    const char* doing;
    int peer = -1;
    bool reads = false;   // its memory
    bool writes = false;  // its memory
  };
  using TransferCall = std::function<ncclResult_t(void* data, std::size_t bytes, ncclComm_t comm)>;
  using Work = std::shared_ptr<NcclWatcher::Work>;
  using Part = NcclWatcher::Part;

  const NcclJob& job() const { return parts_.job; }
  Ticket launch(const Flat& flat, const LaunchRequest& request);
  NcclParts parts_of(const GroupPlace& place) const;
  using Deadline = std::chrono::steady_clock::time_point;
  void begin(Deadline deadline, std::unique_ptr<DesyncBoard> board);
  std::unique_ptr<Collective> split_by_nccl(const GroupPlace& place, int color, int key);
  void put_in_stream(NcclWatcher::Work& work, const std::function<std::optional<Event>()>& launch);
  Work launch_operation(std::uint32_t operation, const char* doing, const Communicator::Call& call,
                        const std::function<void()>& after = {});
  Event capture_operation(const char* doing, const Communicator::Call& call,
                          std::shared_ptr<std::byte> memory);
  void transfer(const Flat& flat, const Movement& movement, const TransferCall& call);
  void do_in_order(const Movement& movement, std::size_t bytes, const Communicator::Call& call,
                   const std::function<void()>& after = {});
  void refuse_in_a_capture(const char* what) const;
  std::vector<std::byte> gather_equal(std::span<const std::byte> mine, const Work& work);
  void let_go();

  NcclParts parts_;
  cudaStream_t stream_;
  Ticket launched_;
  bool splits_ = false;                         // all ranks have an NCCL that splits
  std::shared_ptr<Communicator> communicator_;  // registered memory is the other owner
  std::shared_ptr<DroppedMemory> dropped_;      // likewise
  NcclMemory memory_;
  Staging staging_;       // of gathers
  std::deque<Sum> sums_;  // in ticket order: those that may be under way
  std::shared_ptr<NcclWatcher> watcher_;
};

}  // namespace ddprun::worker
