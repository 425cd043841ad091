// The accelerators of a node as plain values, and how many workers a word of --nproc-per-node
// means by them. Pure: launcher/job/accelerators.h counts. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

// In the order in which `gpu` and `auto` look for one.
enum class AcceleratorKind {
  kNvidia,
  kAmd,
  kIntel,
  kAscend,
  kGaudi,
  kUncounted,  // its device files are there, and they do not say how many devices it has
};

// The devices of one kind that a node has. `visible` devices are those that one process sees.
// `apart` is how many --virtual-local-rank can hand out, one to each worker. The two differ for MIG
// instances, of which CUDA shows a process one.
struct AcceleratorCount {
  AcceleratorKind kind = AcceleratorKind::kNvidia;
  int here = 0;
  int visible = 0;
  int apart = 0;
  bool is_integrated = false;  // a part of the processor: `xpu` alone counts it
  std::string why_none{};      // one clause, if `gpu` and `auto` count none of them
  // Each device's word in the variable of its kind. Empty if these are 0, 1 and so on.
  std::vector<std::string> names{};

  bool operator==(const AcceleratorCount&) const = default;
};

// Kinds that are not here do not occur. In the order of AcceleratorKind.
using Accelerators = std::vector<AcceleratorCount>;

// "1 AMD GPU", "4 AMD GPUs".
std::string counted(int count, AcceleratorKind kind);

// "AMD GPUs".
std::string_view plural_of(AcceleratorKind kind);

// The words `gpu`, `auto`, `xpu`, `npu` and `hpu`, as far as they mean accelerators.
bool is_accelerator_word(std::string_view word);

// If there is no worker, `why_none` says why. It is a clause, or empty if no device file is there.
struct WorkersByAccelerator {
  int workers = 0;
  std::string why_none{};
  // There may be more devices than nothing: files of a kind are there that cannot be counted.
  bool is_uncounted = false;
};

// One worker for each device. `gpu` and `auto` take the first kind that has a visible one. `xpu`,
// `npu` and `hpu` take Intel's GPUs, Ascend and Gaudi. `apart`: --virtual-local-rank is given.
WorkersByAccelerator workers_by_accelerator(const Accelerators& accelerators, std::string_view word,
                                            bool apart);

// The kind of which each worker of --virtual-local-rank is handed one device. It is the one that
// `word` counts, or for a number the first with a visible device. NVIDIA's if there is none.
AcceleratorCount accelerator_apart(const Accelerators& accelerators, std::string_view word);

// The variable that hides devices of a kind from a program: `CUDA_VISIBLE_DEVICES`. Empty for
// kUncounted.
std::string_view list_variable(AcceleratorKind kind);

// The device that `word` looks for: "GPU", "Intel GPU", "Ascend NPU".
std::string_view sought_by(std::string_view word);

}  // namespace ddprun::launcher
