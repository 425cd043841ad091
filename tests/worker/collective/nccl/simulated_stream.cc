#include "tests/worker/collective/nccl/simulated_stream.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "tests/worker/collective/nccl/simulated_gpu.h"

namespace ddprun::worker::sim {
namespace {

thread_local int gpu_here = 0;
thread_local cudaStreamCaptureMode mode_here = cudaStreamCaptureModeGlobal;

// All streams ever made: their threads run until the process ends.
struct Streams {
  std::mutex mutex;
  std::vector<Stream*> all;
  std::map<int, Stream*> legacy;  // of each GPU
};
Streams& streams() {
  static auto* const made = new Streams;
  return *made;
}

struct Blocks {
  std::mutex mutex;
  std::map<const std::byte*, std::shared_ptr<Block>> all;
};
Blocks& blocks() {
  static auto* const made = new Blocks;
  return *made;
}

struct Captures {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture>> under_way;
};
Captures& captures() {
  static auto* const made = new Captures;
  return *made;
}

std::byte* aligned(std::size_t bytes) {
  void* memory = nullptr;
  if (::posix_memalign(&memory, 64, std::max<std::size_t>(bytes, 1)) != 0) std::abort();
  std::memset(memory, 0xEE, bytes);  // nobody promises zeros
  return static_cast<std::byte*>(memory);
}

cudaError_t broken(Capture& capture, cudaError_t error) {
  capture.valid = false;
  return error;
}

// This thread may not make a potentially unsafe call while it goes on (cudaThreadExchangeStream-
// CaptureMode).
bool forbids_here(const Capture& capture) {
  if (mode_here == cudaStreamCaptureModeRelaxed) return false;
  if (capture.thread == std::this_thread::get_id())
    return capture.mode != cudaStreamCaptureModeRelaxed;
  return mode_here == cudaStreamCaptureModeGlobal && capture.mode == cudaStreamCaptureModeGlobal;
}

// The legacy stream waits for the blocking ones, which a capture does not allow.
cudaError_t implicit_order(const Stream& stream) {
  {
    const std::lock_guard lock(streams().mutex);
    const auto found = streams().legacy.find(stream.gpu);
    if (found == streams().legacy.end() || found->second != &stream) return cudaSuccess;
  }
  for (const auto& capture : captures().under_way) {
    if (capture->origin->blocking && capture->origin->gpu == stream.gpu)
      return broken(*capture, cudaErrorStreamCaptureImplicit);
  }
  return cudaSuccess;
}

// All nodes that come before these, and these.
std::set<std::size_t> all_before(const Graph& graph, const std::set<std::size_t>& tails) {
  std::set<std::size_t> found;
  std::vector<std::size_t> open(tails.begin(), tails.end());
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    if (!found.insert(node).second) continue;
    open.insert(open.end(), graph.nodes[node].after.begin(), graph.nodes[node].after.end());
  }
  return found;
}

}  // namespace

Block::Block(int on, std::size_t length) : gpu(on), bytes(length), memory(aligned(length)) {
  ++controls().blocks;
}
Block::~Block() { std::free(memory); }

std::byte* allocate_block(std::size_t bytes) {
  auto block = std::make_shared<Block>(gpu_here, bytes);
  const std::lock_guard lock(blocks().mutex);
  blocks().all.emplace(block->memory, block);
  return block->memory;
}

std::shared_ptr<Block> take_block(void* memory) {
  const std::lock_guard lock(blocks().mutex);
  auto taken = blocks().all.extract(static_cast<std::byte*>(memory));
  if (!taken) return nullptr;
  --controls().blocks;
  return taken.mapped();
}

std::shared_ptr<Block> block_with(const void* memory) {
  const auto* place = static_cast<const std::byte*>(memory);
  const std::lock_guard lock(blocks().mutex);
  auto after = blocks().all.upper_bound(place);
  if (after == blocks().all.begin()) return nullptr;
  const auto& block = std::prev(after)->second;
  return place < block->memory + block->bytes ? block : nullptr;
}

Task task(std::function<void()> run, const std::vector<const void*>& touches) {
  Task made{std::move(run)};
  for (const void* memory : touches) {
    if (auto block = block_with(memory))
      made.uses.push_back(std::make_shared<Use>(std::move(block)));
  }
  return made;
}

void Mark::pass() {
  const std::lock_guard lock(mutex_);
  passed_ = true;
  moved_.notify_all();
}
void Mark::wait() {
  std::unique_lock lock(mutex_);
  moved_.wait(lock, [this] { return passed_; });
}
bool Mark::passed() {
  const std::lock_guard lock(mutex_);
  return passed_;
}

Stream::Stream(int on, bool blocks) : gpu(on), blocking(blocks), thread_([this] { run(); }) {
  thread_.detach();
}

void Stream::add(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  moved_.notify_all();
}

bool Stream::idle() {
  const std::lock_guard lock(mutex_);
  return !running_ && tasks_.empty();
}

std::shared_ptr<Mark> Stream::mark() {
  auto made = std::make_shared<Mark>();
  add({[made] { made->pass(); }});
  return made;
}

// A task lets go of its memory before its successor begins.
void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    moved_.wait(lock, [this] { return !tasks_.empty(); });
    {
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
      lock.unlock();
      task.run();
    }
    lock.lock();
    running_ = false;
  }
}

Stream& stream_of(cudaStream_t stream) {
  if (stream != nullptr) return *reinterpret_cast<Stream*>(stream);
  const std::lock_guard lock(streams().mutex);
  Stream*& legacy = streams().legacy[gpu_here];
  if (legacy == nullptr) streams().all.push_back(legacy = new Stream(gpu_here, true));
  return *legacy;
}

cudaStream_t make_stream(bool blocking) {
  const std::lock_guard lock(streams().mutex);
  streams().all.push_back(new Stream(gpu_here, blocking));
  return reinterpret_cast<cudaStream_t>(streams().all.back());
}

void wait_for_gpu(int gpu) {
  std::vector<std::shared_ptr<Mark>> marks;
  {
    const std::lock_guard lock(streams().mutex);
    for (Stream* stream : streams().all) {
      if (stream->gpu == gpu && !stream->idle()) marks.push_back(stream->mark());
    }
  }
  for (const auto& mark : marks) mark->wait();
}

std::mutex& captures_mutex() { return captures().mutex; }
int this_gpu() { return gpu_here; }
void set_this_gpu(int gpu) { gpu_here = gpu; }
cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode) {
  return std::exchange(mode_here, mode);
}

cudaError_t begin_capture(Stream& stream, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(captures_mutex());
  if (stream.capture != nullptr) return cudaErrorIllegalState;
  stream.capture = std::make_shared<Capture>(Capture{&stream, mode, std::this_thread::get_id()});
  stream.tails.clear();
  captures().under_way.push_back(stream.capture);
  return cudaSuccess;
}

cudaError_t end_capture(Stream& stream, std::shared_ptr<Graph>* graph) {
  std::shared_ptr<Capture> capture;  // what a graph retains goes without the lock
  const std::lock_guard lock(captures_mutex());
  capture = stream.capture;
  if (capture == nullptr) return cudaErrorIllegalState;
  if (capture->origin != &stream) return broken(*capture, cudaErrorStreamCaptureUnmatched);
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id())
    return broken(*capture, cudaErrorStreamCaptureWrongThread);
  capture->over = true;
  std::erase(captures().under_way, capture);
  const auto joined = all_before(*capture->graph, stream.tails);
  const std::lock_guard all(streams().mutex);
  for (Stream* other : streams().all) {
    if (other->capture == capture) other->capture = nullptr;
  }
  if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
  if (joined.size() != capture->graph->nodes.size()) return cudaErrorStreamCaptureUnjoined;
  *graph = capture->graph;
  return cudaSuccess;
}

cudaError_t add_task(Stream& stream, Task task) {
  const std::lock_guard lock(captures_mutex());
  if (const cudaError_t error = implicit_order(stream); error != cudaSuccess) return error;
  const auto capture = stream.capture;
  if (capture == nullptr) {
    stream.add(std::move(task));
    return cudaSuccess;
  }
  if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
  capture->graph->nodes.push_back({std::move(task), stream.tails});
  stream.tails = {capture->graph->nodes.size() - 1};
  return cudaSuccess;
}

cudaError_t record(Event& event, Stream& stream) {
  if (event.gpu != stream.gpu) {
    ++controls().wrong_device;
    return cudaErrorInvalidResourceHandle;
  }
  const std::lock_guard lock(captures_mutex());
  if (const cudaError_t error = implicit_order(stream); error != cudaSuccess) return error;
  const std::lock_guard recording(event.mutex);
  event.capture = stream.capture;
  event.tails = stream.tails;
  event.mark = stream.capture != nullptr ? nullptr : stream.mark();
  if (event.capture != nullptr && !event.capture->valid) return cudaErrorStreamCaptureInvalidated;
  return cudaSuccess;
}

cudaError_t hold(Stream& stream, Event& event) {
  const std::lock_guard lock(captures_mutex());
  if (const cudaError_t error = implicit_order(stream); error != cudaSuccess) return error;
  const std::lock_guard recording(event.mutex);
  if (event.capture != nullptr) {
    if (event.capture->over) return cudaErrorCapturedEvent;
    if (stream.capture == nullptr) {
      stream.capture = event.capture;
      stream.tails.clear();
    }
    if (stream.capture != event.capture) {
      event.capture->valid = false;
      return broken(*stream.capture, cudaErrorStreamCaptureMerge);
    }
    stream.tails.insert(event.tails.begin(), event.tails.end());
    return stream.capture->valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
  }
  if (event.mark == nullptr) return cudaSuccess;
  if (stream.capture != nullptr) return broken(*stream.capture, cudaErrorStreamCaptureIsolation);
  stream.add({[mark = event.mark] { mark->wait(); }});
  return cudaSuccess;
}

cudaError_t query(Event& event, std::shared_ptr<Mark>* mark) {
  if (const cudaError_t error = unsafe_call(); error != cudaSuccess) return error;
  const std::lock_guard lock(captures_mutex());
  const std::lock_guard recording(event.mutex);
  if (event.capture != nullptr) {
    ++controls().captured_queries;
    return broken(*event.capture, cudaErrorCapturedEvent);
  }
  *mark = event.mark;
  return cudaSuccess;
}

cudaError_t unsafe_call() {
  const std::lock_guard lock(captures_mutex());
  bool forbidden = false;
  for (const auto& capture : captures().under_way) {
    if (!forbids_here(*capture)) continue;
    forbidden = true;
    capture->valid = false;
  }
  if (forbidden) ++controls().unsafe_calls;
  return forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t look_at(Stream& stream) {
  if (const cudaError_t error = unsafe_call(); error != cudaSuccess) return error;
  const std::lock_guard lock(captures_mutex());
  if (const cudaError_t error = implicit_order(stream); error != cudaSuccess) return error;
  if (stream.capture == nullptr) return cudaSuccess;
  return broken(*stream.capture, cudaErrorStreamCaptureUnsupported);
}

cudaError_t look_at_gpu(int gpu) {
  if (const cudaError_t error = unsafe_call(); error != cudaSuccess) return error;
  const std::lock_guard lock(captures_mutex());
  for (const auto& capture : captures().under_way) {
    if (capture->origin->gpu == gpu) return broken(*capture, cudaErrorStreamCaptureUnsupported);
  }
  return cudaSuccess;
}

}  // namespace ddprun::worker::sim
