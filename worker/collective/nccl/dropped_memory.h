// Memory of the GPU that nobody holds any more, or only a graph. The GPU may still work on it, and
// NCCL unmaps at once. So it waits until the stream of its last owner has come so far. Then the
// collective's next call frees it: neither CUDA nor NCCL may be called from just any thread. After
// a failure it is never freed, since that may wait for ever. Any thread; shared pointers own it:
// the collective's, and those of its memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/collective/nccl/communicator.h"
#include "worker/collective/nccl/cuda_parts.h"

namespace ddprun::worker {

class DroppedMemory : public std::enable_shared_from_this<DroppedMemory> {
 public:
  DroppedMemory(std::shared_ptr<Communicator> communicator, GpuProgram program, int gpu)
      : communicator_(std::move(communicator)), program_(std::move(program)), gpu_(gpu) {}

  // `free`: called once, when no stream and no graph uses the memory.
  using Free = std::function<void()>;
  std::shared_ptr<std::byte> own(std::byte* memory, Free free);

  // The graph that `stream` is captured into holds both from now on.
  void share_with_graph(cudaStream_t stream, std::shared_ptr<std::byte> memory,
                        std::shared_ptr<void> operation = nullptr);

  // Frees what it can. The collective calls it; no stream of this thread is captured.
  void collect();

  // Before memory is asked for once more: frees what it can, of the program too.
  void make_room();

  // The collective goes: frees what it can within `limit`. From then on the last owner of memory
  // frees it, and waits for the stream.
  void close(std::chrono::milliseconds limit);

 private:
  struct Waiting {
    Event used;
    Free free;
  };
  struct Shared {
    std::shared_ptr<DroppedMemory> owner;
    std::shared_ptr<std::byte> memory;
    std::shared_ptr<void> operation;
  };
  static void CUDART_CB graph_is_gone(void* shared);
  void drop(std::byte* memory, const Free& free);
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }

  const std::shared_ptr<Communicator> communicator_;
  const GpuProgram program_;
  const int gpu_;
  std::atomic<int> count_ = 0;  // of both below
  std::mutex mutex_;            // for all below; never held during a call of CUDA
  std::vector<Waiting> waiting_;
  std::vector<std::shared_ptr<std::byte>> of_graphs_;  // that are gone
  bool closed_ = false;
};

}  // namespace ddprun::worker
