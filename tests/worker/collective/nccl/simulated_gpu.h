// A GPU and an NCCL for machines without. simulated_gpu.cc defines the functions of both that
// worker/collective/nccl calls. The test program links it instead of the libraries. GPU memory is
// host memory, and a stream is a thread with a queue. Ranks are threads, each with a GPU of its
// own. A communicator behaves as a non-blocking one. Its calls answer ncclInProgress, and put their
// kernel into the stream only when it has settled. A kernel of NCCL waits for its peers until it is
// aborted. cudaFree waits for all streams of its GPU, as the real one does.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <functional>
#include <future>

#include "worker/collective/nccl/nccl_optional.h"

namespace ddprun::worker::sim {

// The faults, and the counts of calls, since reset(). Set by tests while ranks run.
struct Controls {
  // Faults.
  std::atomic<bool> hang = false;                       // kernels of NCCL wait while it is set
  std::atomic<ncclResult_t> async_error = ncclSuccess;  // of each communicator
  std::atomic<ncclResult_t> refuses_to_register = ncclSuccess;
  std::atomic<cudaError_t> event_error = cudaSuccess;  // of each query
  std::atomic<bool> revoke_hangs = false;              // it answers, and is never over

  // Counts.
  std::atomic<int> revokes = 0;
  std::atomic<int> aborts = 0;
  std::atomic<int> aborts_before_a_revoke = 0;
  std::atomic<int> destroys = 0;
  std::atomic<int> registered = 0;       // now
  std::atomic<int> registrations = 0;    // ever
  std::atomic<int> left_registered = 0;  // when their communicator was destroyed
  std::atomic<int> blocks = 0;           // of GPU memory, now
  std::atomic<int> event_queries = 0;    // of all threads
  std::atomic<int> calls_at_once = 0;    // calls on a communicator while another one ran
  std::atomic<int> calls_before_settled = 0;
};
Controls& controls();
void reset();  // no rank runs

// Calls of cudaDeviceSynchronize, cudaStreamSynchronize and cudaEventQuery by this thread.
int host_waits();

// The functions that NcclOptional names.
NcclOptional all_optional();

// A stream of this thread's GPU; it lives as long as the process.
cudaStream_t new_stream();
// Work of the program.
void run_on(cudaStream_t stream, std::function<void()> kernel);
// A kernel that runs until open().
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    run_on(stream, [opened = opened_.get_future().share()] { opened.wait(); });
  }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> opened_;
};

}  // namespace ddprun::worker::sim
