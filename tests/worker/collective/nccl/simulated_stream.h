// Streams, events, captures and memory of the simulated GPU, below CUDA's functions
// (simulated_gpu.cc) and NCCL's (simulated_nccl.cc). A stream is a thread with a queue. A captured
// task becomes a node of a graph instead. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/worker/collective/nccl/simulated_gpu.h"
#include "tests/worker/collective/nccl/simulated_order.h"

namespace ddprun::worker::sim {

// Memory that the GPU reads and writes.
struct Block {
  Block(int gpu, std::size_t bytes);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  Block(Block&&) = delete;
  Block& operator=(Block&&) = delete;
  ~Block();

  const int gpu;
  const std::size_t bytes;
  std::byte* const memory;
  std::atomic<int> users = 0;  // tasks in a stream, and nodes of graphs
  Accesses accesses;           // under captures_mutex()
};
std::byte* allocate_block(std::size_t bytes);  // on this thread's GPU, not cleared
// Null: none begins there. The block is gone from then on, and its bytes when its last user is.
std::shared_ptr<Block> take_block(void* memory);
std::shared_ptr<Block> block_with(const void* memory);  // null: memory of the host
void wait_for_gpu(int gpu);                             // all its streams
// Whether a stream or a graph uses it, or nobody has seen yet that none does.
bool is_used(Block& block);

// A block is in use while it lives.
class Use {
 public:
  explicit Use(std::shared_ptr<Block> block) : block_(std::move(block)) { ++block_->users; }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  Use(Use&&) = delete;
  Use& operator=(Use&&) = delete;
  ~Use() { --block_->users; }
  Block& block() const { return *block_; }

 private:
  std::shared_ptr<Block> block_;
};

// A kernel or a copy, and the memory that it reads or writes.
struct Task {
  struct Access {
    std::shared_ptr<Use> use;
    Touched touched;
  };
  std::function<void()> run;
  std::vector<Access> accesses{};
  std::function<void()> enter{};  // called when it enters a stream, alone or in a graph; or empty
};
Task task(std::function<void()> run, const std::vector<Touch>& touches);

// A place in a stream, and what is over there.
class Mark {
 public:
  Mark(int stream_gpu, VectorClock before) : gpu(stream_gpu), clock(std::move(before)) {}
  void pass();
  void wait();
  bool passed();

  const int gpu;
  const VectorClock clock;

 private:
  std::mutex mutex_;
  std::condition_variable moved_;
  bool passed_ = false;
};
// A thread of this GPU's rank knows that it has passed. All of them may do what that allows.
void see(const Mark& mark);
void wait_for(Mark& mark);

// The tasks of a capture, in their order. A graph can run them again.
struct Graph {
  struct Node {
    Task task;
    std::set<std::size_t> after;
  };
  std::vector<Node> nodes;
  std::vector<std::shared_ptr<void>> objects;  // that it retains
};
Task whole(const std::shared_ptr<Graph>& graph);

class Stream;
struct Capture {
  Stream* origin;
  cudaStreamCaptureMode mode;
  std::thread::id thread;  // that has begun it
  bool valid = true;
  bool over = false;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
};

class Stream {
 public:
  Stream(int gpu, bool blocking, int number);

  void add(Task task);  // into the queue
  bool rests();
  std::shared_ptr<Mark> mark();  // under captures_mutex()

  const int gpu;
  const int number;                  // in the process
  VectorClock clock;                 // what is over before its next task; under captures_mutex()
  const bool blocking;               // the legacy stream waits for it
  std::shared_ptr<Capture> capture;  // under captures_mutex()
  std::set<std::size_t> tails;       // its last nodes there

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable moved_;
  std::deque<Task> tasks_;
  bool running_ = false;
  std::thread thread_;
};
std::shared_ptr<Mark> mark_in(Stream& stream);
Stream& stream_of(cudaStream_t stream);  // of null: the legacy stream of this thread's GPU
cudaStream_t make_stream(bool blocking);
// No rank runs. Captures that a failure has left are over, and streams that rest are used again.
void reuse_streams();

struct Event {
  const int gpu;
  std::mutex mutex;
  std::shared_ptr<Mark> mark{};
  std::shared_ptr<Capture> capture{};  // of its last record
  std::set<std::size_t> tails{};
};

std::mutex& captures_mutex();
int this_gpu();
void set_this_gpu(int gpu);
cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode);  // of this thread

// Each answers CUDA's error, and has ended the captures that it breaks.
cudaError_t begin_capture(Stream& stream, cudaStreamCaptureMode mode);
cudaError_t end_capture(Stream& stream, std::shared_ptr<Graph>* graph);
cudaError_t add_task(Stream& stream, Task task);
cudaError_t record(Event& event, Stream& stream);
cudaError_t hold(Stream& stream, Event& event);
cudaError_t query(Event& event, std::shared_ptr<Mark>* mark);
// For a call that CUDA forbids while some captures are under way.
cudaError_t unsafe_call();
// For a call that looks at a stream or waits for it, or for a whole GPU.
cudaError_t look_at(Stream& stream);
cudaError_t look_at_gpu(int gpu);

}  // namespace ddprun::worker::sim
