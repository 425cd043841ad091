#include "tests/worker/collective/nccl/simulated_gpu.h"

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/worker/collective/nccl/simulated_nccl.h"

namespace ddprun::worker::sim {
namespace {

thread_local int this_gpu = 0;
thread_local int waits_here = 0;

// A place in a stream.
class Mark {
 public:
  void pass() {
    const std::lock_guard lock(mutex_);
    passed_ = true;
    moved_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [this] { return passed_; });
  }
  bool passed() {
    const std::lock_guard lock(mutex_);
    return passed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable moved_;
  bool passed_ = false;
};

class Stream {
 public:
  explicit Stream(int on) : gpu(on), thread_([this] { run(); }) { thread_.detach(); }

  void add(std::function<void()> kernel) {
    const std::lock_guard lock(mutex_);
    kernels_.push_back(std::move(kernel));
    moved_.notify_all();
  }
  bool idle() {
    const std::lock_guard lock(mutex_);
    return !running_ && kernels_.empty();
  }
  std::shared_ptr<Mark> mark() {
    auto made = std::make_shared<Mark>();
    add([made] { made->pass(); });
    return made;
  }

  const int gpu;

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      moved_.wait(lock, [this] { return !kernels_.empty(); });
      const auto kernel = std::move(kernels_.front());
      kernels_.pop_front();
      running_ = true;
      lock.unlock();
      kernel();
      lock.lock();
      running_ = false;
    }
  }

  std::mutex mutex_;
  std::condition_variable moved_;
  std::deque<std::function<void()>> kernels_;
  bool running_ = false;
  std::thread thread_;
};

struct Event {
  std::mutex mutex;
  std::shared_ptr<Mark> mark;

  std::shared_ptr<Mark> get() {
    const std::lock_guard lock(mutex);
    return mark;
  }
};

// All streams ever made: their threads run until the process ends.
std::mutex streams_mutex;
std::vector<Stream*>& streams() {
  static auto* const all = new std::vector<Stream*>;
  return *all;
}

Stream& stream_of(cudaStream_t stream) { return *reinterpret_cast<Stream*>(stream); }
Event& event_of(cudaEvent_t event) { return *reinterpret_cast<Event*>(event); }

// Waits as a freed block does.
void wait_for_gpu(int gpu) {
  std::vector<std::shared_ptr<Mark>> marks;
  {
    const std::lock_guard lock(streams_mutex);
    for (Stream* stream : streams()) {
      if (stream->gpu == gpu && !stream->idle()) marks.push_back(stream->mark());
    }
  }
  for (const auto& mark : marks) mark->wait();
}

// Before each block: its GPU. As large as malloc aligns.
struct alignas(64) BlockHead {
  int gpu;
};

}  // namespace

Controls& controls() {
  static Controls all;
  return all;
}

void reset() {
  Controls& now = controls();
  now.hang = now.revoke_hangs = false;
  now.async_error = now.refuses_to_register = ncclSuccess;
  now.event_error = cudaSuccess;
  for (auto* count : {&now.revokes, &now.aborts, &now.aborts_before_a_revoke, &now.destroys,
                      &now.registered, &now.registrations, &now.left_registered, &now.blocks,
                      &now.event_queries, &now.calls_at_once, &now.calls_before_settled})
    *count = 0;
}

int host_waits() { return waits_here; }

cudaStream_t new_stream() {
  const std::lock_guard lock(streams_mutex);
  streams().push_back(new Stream(this_gpu));
  return reinterpret_cast<cudaStream_t>(streams().back());
}

void run_on(cudaStream_t stream, std::function<void()> kernel) {
  stream_of(stream).add(std::move(kernel));
}

void* allocate_block(std::size_t bytes) {
  void* memory = nullptr;
  if (::posix_memalign(&memory, alignof(BlockHead), sizeof(BlockHead) + bytes) != 0) std::abort();
  auto* head = static_cast<BlockHead*>(memory);
  head->gpu = this_gpu;
  std::memset(head + 1, 0xEE, bytes);  // nobody promises zeros
  ++controls().blocks;
  return head + 1;
}

void free_block(void* memory) {
  auto* head = static_cast<BlockHead*>(memory) - 1;
  wait_for_gpu(head->gpu);
  std::free(head);
  --controls().blocks;
}

}  // namespace ddprun::worker::sim

using namespace ddprun::worker::sim;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 8;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int gpu) {
  this_gpu = gpu;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNotReady ? "not ready" : "an illegal memory access was encountered";
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(event_of(event).mutex);
  event_of(event).mark = stream_of(stream).mark();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  ++waits_here;
  ++controls().event_queries;
  if (const cudaError_t error = controls().event_error; error != cudaSuccess) return error;
  const auto mark = event_of(event).get();
  return mark == nullptr || mark->passed() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  if (const auto mark = event_of(event).get()) stream_of(stream).add([mark] { mark->wait(); });
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ++waits_here;
  stream_of(stream).mark()->wait();
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  ++waits_here;
  wait_for_gpu(this_gpu);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = allocate_block(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  free_block(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  run_on(stream, [=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  run_on(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

}  // extern "C"
