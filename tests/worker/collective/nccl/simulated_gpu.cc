#include "tests/worker/collective/nccl/simulated_gpu.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "tests/worker/collective/nccl/simulated_stream.h"

namespace ddprun::worker::sim {
namespace {

constexpr std::size_t kGpuBytes = std::size_t{1} << 30;

thread_local int waits_here = 0;
thread_local cudaError_t last_error = cudaSuccess;  // of a failed allocation

struct UserObject {
  std::shared_ptr<void> held;
};

Event& event_of(cudaEvent_t event) { return *reinterpret_cast<Event*>(event); }
std::shared_ptr<Graph>& graph_of(cudaGraph_t graph) {
  return *reinterpret_cast<std::shared_ptr<Graph>*>(graph);
}
std::shared_ptr<Graph>& graph_of(cudaGraphExec_t exec) {
  return *reinterpret_cast<std::shared_ptr<Graph>*>(exec);
}

}  // namespace

Controls& controls() {
  static Controls all;
  return all;
}

void reset() {
  Controls& now = controls();
  now.gpus = 8;
  now.looks_to_settle = 2;
  now.settles = true;
  now.stagger = false;
  reuse_streams();
  now.async_error = now.refuses_to_register = ncclSuccess;
  now.event_error = cudaSuccess;
  for (auto* fault :
       {&now.hang, &now.queries_hang, &now.revoke_hangs, &now.abort_hangs, &now.out_of_memory})
    *fault = false;
  for (auto* count : {&now.revokes,
                      &now.aborts,
                      &now.aborts_before_a_revoke,
                      &now.unformed_revokes,
                      &now.destroys,
                      &now.communicators,
                      &now.launches,
                      &now.registered,
                      &now.registrations,
                      &now.left_registered,
                      &now.blocks,
                      &now.event_queries,
                      &now.event_waits,
                      &now.calls_at_once,
                      &now.calls_before_settled,
                      &now.wrong_device,
                      &now.unsafe_calls,
                      &now.captured_queries,
                      &now.freed_under_work,
                      &now.mixed_memory,
                      &now.unordered,
                      &now.outside,
                      &now.events,
                      &now.groups,
                      &now.splits})
    *count = 0;
}

int host_waits() { return waits_here; }

cudaStream_t new_stream() { return make_stream(false); }
cudaStream_t new_blocking_stream() { return make_stream(true); }

void run_on(cudaStream_t stream, std::function<void()> kernel, const std::vector<Touch>& touches) {
  add_task(stream_of(stream), task(std::move(kernel), touches));
}

}  // namespace ddprun::worker::sim

using namespace ddprun::worker::sim;

namespace {

cudaError_t put(cudaStream_t stream, Task task) {
  if (stream_of(stream).gpu != this_gpu()) {
    ++controls().wrong_device;
    return cudaErrorInvalidResourceHandle;
  }
  return add_task(stream_of(stream), std::move(task));
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = controls().gpus;
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaSetDevice(int gpu) {
  if (gpu < 0 || gpu >= controls().gpus) return cudaErrorInvalidDevice;
  set_this_gpu(gpu);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* gpu) {
  *gpu = this_gpu();
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (static_cast<int>(error)) {
    case cudaErrorNotReady:
      return "not ready";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    default:
      return "an illegal memory access was encountered";
  }
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  ++controls().events;
  *event = reinterpret_cast<cudaEvent_t>(new Event{.gpu = this_gpu()});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return record(event_of(event), stream_of(stream));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  ++waits_here;
  ++controls().event_queries;
  while (controls().queries_hang) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (const cudaError_t error = controls().event_error; error != cudaSuccess) return error;
  std::shared_ptr<Mark> mark;
  if (const cudaError_t error = query(event_of(event), &mark); error != cudaSuccess) return error;
  if (mark == nullptr) return cudaSuccess;
  if (!mark->passed()) return cudaErrorNotReady;
  see(*mark);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++waits_here;
  ++controls().event_waits;
  std::shared_ptr<Mark> mark;
  if (const cudaError_t error = query(event_of(event), &mark); error != cudaSuccess) return error;
  if (mark != nullptr) wait_for(*mark);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  return hold(stream_of(stream), event_of(event));
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ++waits_here;
  if (const cudaError_t error = look_at(stream_of(stream)); error != cudaSuccess) return error;
  wait_for(*mark_in(stream_of(stream)));
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  ++waits_here;
  if (const cudaError_t error = look_at_gpu(this_gpu()); error != cudaSuccess) return error;
  wait_for_gpu(this_gpu());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (const cudaError_t error = unsafe_call(); error != cudaSuccess) return error;
  if (controls().out_of_memory) return last_error = cudaErrorMemoryAllocation;
  *memory = allocate_block(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (const cudaError_t error = unsafe_call(); error != cudaSuccess) return error;
  const auto block = take_block(memory);
  if (block == nullptr) return cudaErrorInvalidValue;
  wait_for_gpu(block->gpu);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = controls().out_of_memory ? 0 : kGpuBytes;
  *total = kGpuBytes;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return put(stream, task([=] { std::memset(memory, value, bytes); }, {writes(memory, bytes)}));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  return put(stream,
             task([=] { std::memcpy(to, from, bytes); }, {writes(to, bytes), reads(from, bytes)}));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  *mode = exchange_capture_mode(*mode);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return begin_capture(stream_of(stream), mode);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  std::shared_ptr<Graph> captured;
  const cudaError_t error = end_capture(stream_of(stream), &captured);
  *graph = error == cudaSuccess
               ? reinterpret_cast<cudaGraph_t>(new std::shared_ptr<Graph>(std::move(captured)))
               : nullptr;
  return error;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* /*id*/, cudaGraph_t* graph,
                                     const cudaGraphNode_t** /*dependencies*/,
                                     const cudaGraphEdgeData** /*edges*/, std::size_t* /*count*/) {
  const std::lock_guard lock(captures_mutex());
  const auto& capture = stream_of(stream).capture;
  *status = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->valid   ? cudaStreamCaptureStatusActive
                               : cudaStreamCaptureStatusInvalidated;
  // As with CUDA, the handle is good while the capture goes on.
  if (graph != nullptr && capture != nullptr)
    *graph = reinterpret_cast<cudaGraph_t>(&capture->graph);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new std::shared_ptr<Graph>(graph_of(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return put(stream, whole(graph_of(exec)));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete &graph_of(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete &graph_of(exec);
  return cudaSuccess;
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* held, cudaHostFn_t destroy,
                                 unsigned /*references*/, unsigned /*flags*/) {
  *object = reinterpret_cast<cudaUserObject_t>(new UserObject{{held, destroy}});
  return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned /*count*/) {
  delete reinterpret_cast<UserObject*>(object);
  return cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                      unsigned /*count*/, unsigned /*flags*/) {
  auto* const given = reinterpret_cast<UserObject*>(object);
  const std::lock_guard lock(captures_mutex());
  graph_of(graph)->objects.push_back(std::move(given->held));
  delete given;
  return cudaSuccess;
}

}  // extern "C"
