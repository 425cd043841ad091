// Two GPUs of one process, for machines without: LibTorch's kind of device for others
// (PrivateUse1), over host memory. Its kernels are those of the CPU. They run at once, but say on
// which stream, and which memory they read and write. Two that meet must have an order, by the
// stream or by events (simulated_order.h). Tensors of two devices must not meet in a kernel, but in
// a copy. Autograd has a thread for each device, as with CUDA. A collective sums over the ranks'
// shared memory, and has one device. A process of a test has one of these, and forked ranks have
// their own.
#pragma once

#include <c10/core/Device.h>
#include <ddprun/collective.h>

#include <memory>
#include <string>

namespace ddprun::worker::devices {

inline constexpr c10::DeviceIndex kDevices = 2;

// LibTorch knows the devices from now on. Before its first backward().
void set_up();

c10::Device device(int index);

// This thread's kernels go to this stream of the device from now on, and not to stream 0.
void set_stream(int index, int stream);

// Returns what must not have happened, a line each.
std::string faults();

// Buckets that were launched on the device, from any thread.
int launches(int index);

// The collective of `ranks`, with the memory of a device, which becomes this thread's current one.
// `ranks` must outlive it.
std::unique_ptr<Collective> on_device(Collective& ranks, int index);

}  // namespace ddprun::worker::devices
