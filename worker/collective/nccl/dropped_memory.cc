#include "worker/collective/nccl/dropped_memory.h"

#include <ddprun/collective.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "base/log.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kPause{200};

}  // namespace

std::shared_ptr<std::byte> DroppedMemory::own(std::byte* memory, Free free) {
  return {memory, [self = shared_from_this(), free = std::move(free)](std::byte* dropped) {
            try {
              self->drop(dropped, free);
            } catch (const CollectiveError& error) {
              log::debug(std::string("memory of the GPU is not freed: ") + error.what());
            }
          }};
}

// A captured stream does not say how far it is: then the graph may use the memory.
void DroppedMemory::drop(std::byte* memory, const Free& free) {
  if (communicator_->failed()) return;
  const OnGpu here(gpu_);
  const cudaStream_t stream = program_.current();
  if (is_captured(stream)) return share_with_graph(stream, own(memory, free));
  Event used(stream);
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      waiting_.push_back({std::move(used), free});
      ++count_;
      return;
    }
  }
  used.wait();
  free();
}

void DroppedMemory::share_with_graph(cudaStream_t stream, std::shared_ptr<std::byte> memory,
                                     std::shared_ptr<void> operation) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph), "look at a capture");
  auto shared =
      std::make_unique<Shared>(Shared{shared_from_this(), std::move(memory), std::move(operation)});
  cudaUserObject_t object = nullptr;
  check_cuda(
      cudaUserObjectCreate(&object, shared.get(), graph_is_gone, 1, cudaUserObjectNoDestructorSync),
      "keep memory for a graph");
  static_cast<void>(shared.release());  // it is the object's
  const cudaError_t given = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (given != cudaSuccess) cudaUserObjectRelease(object, 1);
  check_cuda(given, "keep memory for a graph");
}

// On a thread of CUDA's own, which may not call CUDA: the collective drops the memory. If the
// collective is gone, nobody does.
void DroppedMemory::graph_is_gone(void* shared) {
  const std::unique_ptr<Shared> gone(static_cast<Shared*>(shared));
  if (gone->memory == nullptr) return;
  static auto* const kept = new std::vector<std::shared_ptr<std::byte>>;
  static std::mutex kept_mutex;
  {
    const std::lock_guard lock(gone->owner->mutex_);
    if (!gone->owner->closed_) {
      gone->owner->of_graphs_.push_back(std::move(gone->memory));
      ++gone->owner->count_;
      return;
    }
  }
  const std::lock_guard lock(kept_mutex);
  kept->push_back(std::move(gone->memory));
}

void DroppedMemory::collect() {
  if (empty()) return;
  std::vector<std::shared_ptr<std::byte>> of_graphs;
  std::vector<Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    of_graphs.swap(of_graphs_);
    waiting.swap(waiting_);
    count_ = 0;
  }
  of_graphs.clear();  // drops them: now their time counts
  std::vector<Waiting> still;
  for (Waiting& dropped : waiting) {
    if (dropped.used.passed()) {
      dropped.free();
    } else {
      still.push_back(std::move(dropped));
    }
  }
  const std::lock_guard lock(mutex_);
  count_ += static_cast<int>(still.size());
  std::ranges::move(still, std::back_inserter(waiting_));
}

void DroppedMemory::make_room() {
  collect();
  if (program_.give_back) program_.give_back();
}

void DroppedMemory::close(std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!communicator_->failed()) {
    collect();
    if (empty() || Clock::now() >= deadline) break;
    std::this_thread::sleep_for(kPause);
  }
  std::vector<std::shared_ptr<std::byte>> of_graphs;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    of_graphs.swap(of_graphs_);
  }
  if (!communicator_->failed()) collect();  // what came meanwhile
}

}  // namespace ddprun::worker
