#include "tests/worker/collective/nccl/simulated_stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <thread>
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
  std::vector<Stream*> spare;     // nobody has them
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

void pause_by_chance() {
  thread_local std::minstd_rand chance(
      static_cast<unsigned>(std::hash<std::thread::id>{}(std::this_thread::get_id())));
  if (chance() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(chance() % 300));
}

// The tasks of each GPU that the host has seen to be over. Under captures_mutex().
std::map<int, VectorClock>& seen() {
  static auto* const all = new std::map<int, VectorClock>;
  return *all;
}
std::string& first_disorder() {
  static auto* const line = new std::string;
  return *line;
}

void count_disorder(const std::string& line) {
  if (controls().unordered++ == 0) first_disorder() = line;
}

// Compares the next task of a stream with what came before it in others.
void keep_order(Stream& stream, const Task& task) {
  stream.clock.join(seen()[stream.gpu]);
  const VectorClock before = stream.clock;
  const std::uint64_t number = stream.clock.advance(stream.number);
  for (const auto& [use, touched] : task.accesses) {
    const auto trouble = use->block().accesses.add(touched, stream.number, number, before);
    if (trouble) count_disorder(*trouble);
  }
}

// The same for the next node of a graph, which comes after `tails`.
void keep_order(const Graph& graph, const std::set<std::size_t>& tails, const Task& task) {
  const auto before = all_before(graph, tails);
  for (std::size_t other = 0; other < graph.nodes.size(); ++other) {
    if (before.contains(other)) continue;
    for (const auto& theirs : graph.nodes[other].task.accesses) {
      for (const auto& ours : task.accesses) {
        if (&ours.use->block() == &theirs.use->block() && ours.touched.meets(theirs.touched))
          count_disorder("two nodes of a graph meet in memory, and have no order");
      }
    }
  }
}

Stream& add_stream(bool blocking) {  // under the streams' mutex
  auto& spare = streams().spare;
  const auto same = std::ranges::find_if(spare, [=](const Stream* stream) {
    return stream->gpu == gpu_here && stream->blocking == blocking;
  });
  if (same != spare.end()) {
    Stream& again = **same;
    spare.erase(same);
    return again;
  }
  auto& all = streams().all;
  all.push_back(new Stream(gpu_here, blocking, static_cast<int>(all.size())));
  return *all.back();
}

}  // namespace

std::string disorder() {
  const std::lock_guard lock(captures_mutex());
  return first_disorder();
}

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

Task task(std::function<void()> run, const std::vector<Touch>& touches) {
  Task made{std::move(run)};
  for (const Touch& touch : touches) {
    auto block = block_with(touch.memory);
    if (block == nullptr) continue;
    const auto* const begin = static_cast<const std::byte*>(touch.memory);
    const auto most = static_cast<std::size_t>(block->memory + block->bytes - begin);
    if (touch.bytes != Touch::kToTheEnd && touch.bytes > most) ++controls().outside;
    const Touched touched{begin, begin + std::min(touch.bytes, most), touch.writes};
    made.accesses.push_back({std::make_shared<Use>(std::move(block)), touched});
  }
  return made;
}

// Its nodes need not be compared again with each other.
Task whole(const std::shared_ptr<Graph>& graph) {
  Task made{[graph] {
    for (const auto& node : graph->nodes) node.task.run();
  }};
  made.enter = [graph] {
    for (const auto& node : graph->nodes) {
      if (node.task.enter) node.task.enter();
    }
  };
  for (const auto& node : graph->nodes)
    made.accesses.insert(made.accesses.end(), node.task.accesses.begin(), node.task.accesses.end());
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

Stream::Stream(int on, bool blocks, int of_process)
    : gpu(on), number(of_process), blocking(blocks), thread_([this] { run(); }) {
  thread_.detach();
}

void Stream::add(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  moved_.notify_all();
}

bool Stream::rests() {
  const std::lock_guard lock(mutex_);
  return !running_ && tasks_.empty();
}

std::shared_ptr<Mark> Stream::mark() {
  auto made = std::make_shared<Mark>(gpu, clock);
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
      if (controls().stagger) pause_by_chance();
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
  if (legacy == nullptr) legacy = &add_stream(true);
  return *legacy;
}

cudaStream_t make_stream(bool blocking) {
  const std::lock_guard lock(streams().mutex);
  return reinterpret_cast<cudaStream_t>(&add_stream(blocking));
}

void reuse_streams() {
  const std::lock_guard clocks(captures_mutex());
  const std::lock_guard lock(streams().mutex);
  streams().spare.clear();
  captures().under_way.clear();
  for (Stream* stream : streams().all) {
    stream->capture = nullptr;
    const auto legacy = streams().legacy.find(stream->gpu);
    const bool is_legacy = legacy != streams().legacy.end() && legacy->second == stream;
    if (!is_legacy && stream->rests()) streams().spare.push_back(stream);
  }
}

void see(const Mark& mark) {
  const std::lock_guard lock(captures_mutex());
  seen()[mark.gpu].join(mark.clock);
}
void wait_for(Mark& mark) {
  mark.wait();
  see(mark);
}
std::shared_ptr<Mark> mark_in(Stream& stream) {
  const std::lock_guard lock(captures_mutex());
  return stream.mark();
}

void wait_for_gpu(int gpu) {
  std::vector<std::shared_ptr<Mark>> marks;
  {
    const std::lock_guard clocks(captures_mutex());
    const std::lock_guard lock(streams().mutex);
    for (Stream* stream : streams().all) {
      if (stream->gpu == gpu) marks.push_back(stream->mark());
    }
  }
  for (const auto& mark : marks) wait_for(*mark);
}

bool is_used(Block& block) {
  const std::lock_guard lock(captures_mutex());
  return block.users != 0 || !block.accesses.over(seen()[block.gpu]);
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
  // Events that were recorded in it may live longer, and hold no graph.
  *graph = std::exchange(capture->graph, nullptr);
  if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
  if (joined.size() != (*graph)->nodes.size()) return cudaErrorStreamCaptureUnjoined;
  return cudaSuccess;
}

cudaError_t add_task(Stream& stream, Task task) {
  const std::lock_guard lock(captures_mutex());
  if (const cudaError_t error = implicit_order(stream); error != cudaSuccess) return error;
  const auto capture = stream.capture;
  if (capture == nullptr) {
    keep_order(stream, task);
    if (task.enter) task.enter();
    stream.add(std::move(task));
    return cudaSuccess;
  }
  if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
  keep_order(*capture->graph, stream.tails, task);
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
  stream.clock.join(event.mark->clock);
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
