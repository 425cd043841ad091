#include "tests/worker/training/data_parallel/simulated_devices.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/worker/collective/nccl/simulated_order.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker::devices {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kStreamsOfADevice = 100;
constexpr int kOfSums = kStreamsOfADevice - 1;  // the stream of the collective

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<int, kDevices> current_streams{};

std::size_t place(int index) { return static_cast<std::size_t>(index); }

int number_of(int index, int stream) { return index * kStreamsOfADevice + stream; }
int current_number(int index) { return number_of(index, current_streams.at(place(index))); }

struct Block {
  std::size_t bytes;
  int device;
  sim::Accesses accesses{};
};

// All that the devices know. Threads of ranks, of autograd and of the test use it.
struct State {
  std::mutex mutex;
  std::map<const std::byte*, Block> blocks;
  std::map<int, sim::VectorClock> clocks;  // by stream
  std::set<std::string> faults;
  std::array<int, kDevices> launches{};

  Block* block_of(const void* memory) {
    const auto* const at = static_cast<const std::byte*>(memory);
    auto after = blocks.upper_bound(at);
    if (after == blocks.begin()) return nullptr;
    const auto found = std::prev(after);
    return at < found->first + found->second.bytes ? &found->second : nullptr;
  }
  void touch(const void* memory, std::size_t bytes, bool writes, int stream) {
    Block* const block = block_of(memory);
    if (block == nullptr) return;
    sim::VectorClock& clock = clocks[stream];
    const auto before = clock;
    const auto* const begin = static_cast<const std::byte*>(memory);
    const auto trouble =
        block->accesses.add({begin, begin + bytes, writes}, stream, clock.advance(stream), before);
    if (trouble) faults.insert(*trouble);
    if (block->device != stream / kStreamsOfADevice)
      faults.insert("memory of a device met a stream of another one");
  }
};
State& state() {
  static auto* const all = new State;
  return *all;
}

void touch(const void* memory, std::size_t bytes, bool writes, int stream) {
  const std::lock_guard lock(state().mutex);
  state().touch(memory, bytes, writes, stream);
}

// Later tasks of a stream come after what another one has now.
void join(int stream, int after) {
  const std::lock_guard lock(state().mutex);
  state().clocks[stream].join(state().clocks[after]);
}

void add_block(const void* memory, std::size_t bytes, int index) {
  const std::lock_guard lock(state().mutex);
  state().blocks[static_cast<const std::byte*>(memory)] = {.bytes = bytes, .device = index};
}

void remove_block(const void* memory) {
  const std::lock_guard lock(state().mutex);
  state().blocks.erase(static_cast<const std::byte*>(memory));
}

class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = std::calloc(std::max(bytes, std::size_t{1}), 1);
    add_block(memory, bytes, current_device);
    return {memory, memory, &give_back, device(current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  static void give_back(void* memory) {
    remove_block(memory);
    std::free(memory);
  }
};
Memory& memory() {
  static auto* const all = new Memory;
  return *all;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device next) const override {
    return {kType, std::exchange(current_device, next.index())};
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device next) const override { current_device = next.index(); }
  void uncheckedSetDevice(c10::Device next) const noexcept override {
    current_device = next.index();
  }
  c10::Stream getStream(c10::Device of) const override {
    return stream(of, current_streams.at(place(of.index())));
  }
  c10::Stream getDefaultStream(c10::Device of) const override { return stream(of, 0); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    int& current = current_streams.at(place(next.device().index()));
    return stream(next.device(), std::exchange(current, static_cast<int>(next.id())));
  }
  void record(void** event, const c10::Stream& of, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new sim::VectorClock;
    const std::lock_guard lock(state().mutex);
    *static_cast<sim::VectorClock*>(*event) = state().clocks[number_of(of)];
  }
  void block(void* event, const c10::Stream& of) const override {
    const std::lock_guard lock(state().mutex);
    state().clocks[number_of(of)].join(*static_cast<sim::VectorClock*>(event));
  }
  bool queryEvent(void* /*event*/) const override { return true; }
  double elapsedTime(void* /*first*/, void* /*second*/,
                     c10::DeviceIndex /*device*/) const override {
    return 0;
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<sim::VectorClock*>(event);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

 private:
  static c10::Stream stream(c10::Device of, int id) {
    return c10::Stream(c10::Stream::UNSAFE, of, static_cast<c10::StreamId>(id));
  }
  static int number_of(const c10::Stream& of) {
    return devices::number_of(of.device().index(), static_cast<int>(of.id()));
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  // torch::manual_seed() sets it, once more.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*index*/) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Device getDeviceFromPtr(void* data) const override {
    const std::lock_guard lock(state().mutex);
    const Block* const block = state().block_of(data);
    if (block == nullptr) throw std::runtime_error("this is no memory of a device");
    return device(block->device);
  }
};

// The same memory for the CPU's kernels.
at::Tensor as_cpu(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(tensor.scalar_type()));
}

void touch(const at::Tensor& tensor, bool writes) {
  touch(tensor.data_ptr(), tensor.nbytes(), writes, current_number(tensor.device().index()));
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> where,
                 std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(where);
  return at::detail::empty_generic(sizes, &memory(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> where, std::optional<bool> /*pinned*/) {
  const c10::OptionalDeviceGuard guard(where);
  return at::detail::empty_strided_generic(sizes, strides, &memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// As CUDA's between two devices: the current streams of both wait for each other.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  std::vector<int> streams;
  for (const at::Tensor* each : {&from, &to})
    if (!each->is_cpu()) streams.push_back(current_number(each->device().index()));
  if (streams.size() == 2) join(streams[0], streams[1]);
  if (!from.is_cpu()) touch(from, false);
  if (streams.size() == 2) join(streams[1], streams[0]);
  if (!to.is_cpu()) touch(to, true);
  if (streams.size() == 2) join(streams[0], streams[1]);
  (to.is_cpu() ? to : as_cpu(to)).copy_(from.is_cpu() ? from : as_cpu(from));
  return to;
}

// A kernel of the CPU in place of one of the device.
class Kernel {
 public:
  Kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op_(op), stack_(*stack) {}

  void run() {
    const auto& arguments = op_.schema().arguments();
    const std::size_t first = stack_.size() - arguments.size();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* const alias = arguments[i].alias_info();
      give(stack_[first + i], alias != nullptr && alias->isWrite());
    }
    op_.callBoxed(&stack_);
    for (std::size_t i = stack_.size() - op_.schema().returns().size(); i < stack_.size(); ++i)
      if (stack_[i].isTensor() && device_) stack_[i] = taken(stack_[i].toTensor());
  }

 private:
  void give(c10::IValue& value, bool writes) {
    if (value.isDevice()) value = c10::Device(c10::kCPU);
    if (value.isTensor() && value.toTensor().defined()) value = given(value.toTensor(), writes);
    if (!value.isTensorList()) return;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(given(tensor, writes));
    value = std::move(list);
  }
  at::Tensor given(const at::Tensor& tensor, bool writes) {
    if (tensor.is_cpu() && tensor.dim() == 0) return tensor;
    if (tensor.is_cpu() || device_.value_or(tensor.device()) != tensor.device())
      throw std::runtime_error("tensors of two devices meet in " + op_.schema().name());
    device_ = tensor.device();
    touch(tensor, writes);
    aliases_.emplace_back(as_cpu(tensor), tensor);
    return aliases_.back().first;
  }
  at::Tensor taken(const at::Tensor& result) const {
    for (const auto& [alias, tensor] : aliases_)
      if (result.is_same(alias)) return tensor;
    if (!result.defined()) return result;
    at::Tensor made =
        at::empty_strided(result.sizes(), result.strides(), result.options().device(*device_));
    touch(made, true);
    as_cpu(made).copy_(result);
    return made;
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  std::optional<c10::Device> device_;
  std::vector<std::pair<at::Tensor, at::Tensor>> aliases_;
};

void run_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Kernel(op, stack).run();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_kernel>());
}

struct Made {
  std::unique_ptr<Collective> made;
};

class OfADevice final : private Made, public PassingCollective {
 public:
  OfADevice(Collective& ranks, int index)
      : PassingCollective(ranks), ranks_(ranks), index_(index) {}
  OfADevice(std::unique_ptr<Collective> ranks, int index)
      : Made{std::move(ranks)}, PassingCollective(*made), ranks_(*made), index_(index) {}

  Device device() const override { return Device::kCuda; }
  int gpu() const override { return index_; }
  std::unique_ptr<Collective> on_gpu(int gpu) override {
    return std::make_unique<OfADevice>(ranks_.split(0, ranks_.rank()), gpu);
  }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    auto held = ranks_.allocate(bytes);
    add_block(held.get(), bytes, index_);
    std::byte* const begin = held.get();
    return {begin, [held](const std::byte* gone) { remove_block(gone); }};
  }
  Ticket launch(Flat flat, Reduction reduction) override {
    join(sums(), current_number(index_));
    touch(flat.data, flat.bytes(), true, sums());
    {
      const std::lock_guard lock(state().mutex);
      ++state().launches.at(place(index_));
    }
    return ranks_.launch(flat, reduction);
  }
  void wait(Ticket ticket) override {
    ranks_.wait(ticket);
    join(current_number(index_), sums());
  }
  void broadcast(Flat flat, int root) override {
    touch(flat.data, flat.bytes(), ranks_.rank() != root, current_number(index_));
    ranks_.broadcast(flat, root);
  }

 private:
  int sums() const { return number_of(index_, kOfSums); }

  Collective& ranks_;
  const int index_;
};

}  // namespace

c10::Device device(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }

void set_up() {
  static const Guard guard;
  static Hooks hooks;
  static const c10::impl::DeviceGuardImplRegistrar registrar(kType, &guard);
  c10::register_privateuse1_backend("simulated");
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kType, &memory());
}

void set_stream(int index, int stream) { current_streams.at(place(index)) = stream; }

std::string faults() {
  const std::lock_guard lock(state().mutex);
  std::string lines;
  for (const std::string& line : state().faults) lines += line + "\n";
  return lines;
}

int launches(int index) {
  const std::lock_guard lock(state().mutex);
  return state().launches.at(place(index));
}

std::unique_ptr<Collective> on_device(Collective& ranks, int index) {
  current_device = static_cast<c10::DeviceIndex>(index);
  return std::make_unique<OfADevice>(ranks, index);
}

}  // namespace ddprun::worker::devices
