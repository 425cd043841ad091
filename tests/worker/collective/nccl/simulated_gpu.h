// A GPU and an NCCL for machines without. simulated_gpu.cc and simulated_nccl.cc define the
// functions of both that worker/collective/nccl calls. The test program links them instead of the
// libraries. GPU memory is host memory, and a stream is a thread with a queue. Ranks are threads,
// each with a GPU of its own. They are as strict as the real ones:
//
// - Events, streams and memory belong to a GPU. To mix them is an error.
// - Streams are captured, with CUDA's errors, and graphs run again. A graph of sums holds the
//   communicator.
// - A communicator is a non-blocking one. Its calls answer ncclInProgress, and put their kernel
//   into the stream only when it has settled. It refuses calls before. A kernel of NCCL waits for
//   its peers until it is aborted. The abort waits for the streams that its kernels are in.
// - cudaFree waits for all streams of its GPU. ncclMemFree takes memory away at once.
// - Each task says which memory it reads and writes. Two that meet must have an order, whichever of
//   them runs first. Events give one, and waits of the host (simulated_order.h). A look by any
//   thread of a GPU counts for all of them, the watcher's too. So one run may miss a fault. Reads
//   and writes by the host are not looked at.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "worker/collective/nccl/nccl_optional.h"

namespace ddprun::worker::sim {

// The faults, and the counts of calls, since reset(). Set by tests while ranks run.
struct Controls {
  // The machine.
  std::atomic<int> gpus = 8;
  std::atomic<int> looks_to_settle = 2;  // at the state of a communicator, after a call
  std::atomic<bool> settles = true;      // else no communicator does
  std::atomic<bool> stagger = false;     // streams pause before tasks now and then, by chance

  // Faults.
  std::atomic<bool> hang = false;                       // kernels of NCCL wait while it is set
  std::atomic<ncclResult_t> async_error = ncclSuccess;  // of each communicator
  std::atomic<ncclResult_t> refuses_to_register = ncclSuccess;
  std::atomic<cudaError_t> event_error = cudaSuccess;  // of each query
  std::atomic<bool> queries_hang = false;              // they block while it is set
  std::atomic<bool> revoke_hangs = false;              // it answers, and is never over
  std::atomic<bool> abort_hangs = false;               // it blocks while it is set
  std::atomic<bool> out_of_memory = false;

  // Counts.
  std::atomic<int> revokes = 0;
  std::atomic<int> aborts = 0;
  std::atomic<int> aborts_before_a_revoke = 0;
  std::atomic<int> unformed_revokes = 0;  // of communicators that not all ranks had joined
  std::atomic<int> destroys = 0;
  std::atomic<int> communicators = 0;    // now
  std::atomic<int> launches = 0;         // of operations; calls alone
  std::atomic<int> groups = 0;           // of such calls
  std::atomic<int> splits = 0;           // calls of ranks
  std::atomic<int> registered = 0;       // now
  std::atomic<int> registrations = 0;    // ever
  std::atomic<int> left_registered = 0;  // when their communicator was destroyed
  std::atomic<int> blocks = 0;           // of GPU memory, now
  std::atomic<int> events = 0;           // made
  std::atomic<int> event_queries = 0;    // of all threads
  std::atomic<int> event_waits = 0;      // of hosts
  std::atomic<int> calls_at_once = 0;    // calls on a communicator while another one ran
  std::atomic<int> calls_before_settled = 0;
  std::atomic<int> wrong_device = 0;      // what belongs to one GPU was used with another
  std::atomic<int> unsafe_calls = 0;      // that broke a capture
  std::atomic<int> captured_queries = 0;  // of events that were recorded in a capture
  std::atomic<int> freed_under_work = 0;  // blocks that a stream or a graph still used
  std::atomic<int> mixed_memory = 0;      // operations with registered and with plain memory
  std::atomic<int> unordered = 0;         // accesses that meet others and have no order with them
  std::atomic<int> outside = 0;           // accesses behind the end of a block
};
Controls& controls();
void reset();  // no rank runs

// The first of Controls::unordered.
std::string disorder();

// Calls of cudaDeviceSynchronize, cudaStreamSynchronize, cudaEventSynchronize and cudaEventQuery by
// this thread.
int host_waits();

// The functions that NcclOptional names.
NcclOptional all_optional();

// A stream of this thread's GPU; it lives as long as the process. As LibTorch's, it is not ordered
// with the legacy stream.
cudaStream_t new_stream();
cudaStream_t new_blocking_stream();
// Memory that a task works on.
struct Touch {
  static constexpr std::size_t kToTheEnd = SIZE_MAX;  // of its block

  const void* memory;
  std::size_t bytes;
  bool writes;
};
inline Touch reads(const void* memory, std::size_t bytes = Touch::kToTheEnd) {
  return {memory, bytes, false};
}
inline Touch writes(const void* memory, std::size_t bytes = Touch::kToTheEnd) {
  return {memory, bytes, true};
}

// Work of the program.
void run_on(cudaStream_t stream, std::function<void()> kernel,
            const std::vector<Touch>& touches = {});
// A kernel that runs until open().
class Gate {
 public:
  explicit Gate(cudaStream_t stream, const std::vector<Touch>& touches = {}) {
    run_on(
        stream, [opened = opened_.get_future().share()] { opened.wait(); }, touches);
  }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> opened_;
};

}  // namespace ddprun::worker::sim
