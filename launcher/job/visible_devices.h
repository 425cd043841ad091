// The devices of a node that a program sees. Its runtime (CUDA, ROCm, Level Zero and others) hides
// some by a variable. Pure functions from a list as users write it to devices. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

// The number of a device that a list names by an id, if no file says which device that is.
inline constexpr int kSomeDevice = -1;

struct CudaDevices {
  std::vector<int> gpus{};  // in the list's order
  int instances = 0;        // MIG instances; CUDA shows a process one of them
};

// `uuids`: one for each GPU, in CUDA's order; empty where the driver does not say it. Takes the
// words of CUDA_VISIBLE_DEVICES up to the first that names no device. That is CUDA's rule (CUDA C++
// Programming Guide, "CUDA Environment Variables"). The first word says what the list consists of:
// numbers, UUIDs or MIG instances. A UUID may be cut short as long as one GPU alone has it. A list
// that names a device twice is empty.
CudaDevices visible_to_cuda(const std::vector<std::string>& uuids, std::string_view list);

// ROCR_VISIBLE_DEVICES: numbers, and UUIDs of ROCm (`GPU-` and 16 digits). The list ends at the
// first word that names no device, or one that was named before.
std::vector<int> visible_to_rocr(const std::vector<std::string>& uuids, std::string_view list);

// HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES in its place, among the devices that ROCr shows. A
// device that is named again counts once.
std::vector<int> visible_to_hip(const std::vector<std::string>& uuids, std::string_view list);

// ZE_AFFINITY_MASK. `is_flat`: each tile is a device, and a word is one number. Else words may be
// `device.tile`, and each device counts once. Words that name no device are passed over.
std::vector<int> visible_to_level_zero(int devices, std::string_view mask, bool is_flat);

// ONEAPI_DEVICE_SELECTOR: the terms of Level Zero with numbers, `gpu` or `*`. A selector of any
// other form is not understood, and hides nothing.
int visible_to_selector(int devices, std::string_view selector);

// ASCEND_RT_VISIBLE_DEVICES and HABANA_VISIBLE_MODULES: numbers. Ascend's are below `devices`, and
// the list ends at the first one that is not. Gaudi's are those of modules, which may be any.
int visible_to_ascend(int devices, std::string_view list);
int visible_to_gaudi(int devices, std::string_view list);

}  // namespace ddprun::launcher
