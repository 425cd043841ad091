#include "launcher/options/accelerators.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

namespace ddprun::launcher {
namespace {

struct KindNames {
  std::string_view one, several;
};

KindNames names_of(AcceleratorKind kind) {
  switch (kind) {
    case AcceleratorKind::kNvidia:
      return {"NVIDIA GPU", "NVIDIA GPUs"};
    case AcceleratorKind::kAmd:
      return {"AMD GPU", "AMD GPUs"};
    case AcceleratorKind::kIntel:
      return {"Intel GPU", "Intel GPUs"};
    case AcceleratorKind::kAscend:
      return {"Ascend NPU", "Ascend NPUs"};
    case AcceleratorKind::kGaudi:
      return {"Gaudi", "Gaudis"};
    case AcceleratorKind::kUncounted:
      break;
  }
  return {"other accelerator", "other accelerators"};
}

struct OwnWord {
  std::string_view word;
  AcceleratorKind kind;
};

// Words that mean one kind, as torch's devices are named.
constexpr std::array kOwnWords = {OwnWord{"xpu", AcceleratorKind::kIntel},
                                  OwnWord{"npu", AcceleratorKind::kAscend},
                                  OwnWord{"hpu", AcceleratorKind::kGaudi}};

std::optional<AcceleratorKind> kind_of(std::string_view word) {
  const auto* found = std::find_if(kOwnWords.begin(), kOwnWords.end(),
                                   [word](const OwnWord& own) { return own.word == word; });
  return found == kOwnWords.end() ? std::nullopt : std::optional(found->kind);
}

// An integrated GPU is for its own word alone.
bool is_counted_by(std::string_view word, const AcceleratorCount& one) {
  const auto only = kind_of(word);
  return only ? one.kind == *only : !one.is_integrated;
}

}  // namespace

std::string counted(int count, AcceleratorKind kind) {
  return fmt::format("{} {}", count, count == 1 ? names_of(kind).one : names_of(kind).several);
}

std::string_view plural_of(AcceleratorKind kind) { return names_of(kind).several; }

bool is_accelerator_word(std::string_view word) {
  return word == "gpu" || word == "auto" || kind_of(word).has_value();
}

WorkersByAccelerator workers_by_accelerator(const Accelerators& accelerators, std::string_view word,
                                            bool apart) {
  WorkersByAccelerator found;
  for (const AcceleratorCount& one : accelerators) {
    if (const auto only = kind_of(word); only && one.kind != *only) continue;
    const int workers = apart ? one.apart : one.visible;
    if (workers > 0 && is_counted_by(word, one)) return {workers, {}};
    if (one.why_none.empty()) continue;
    found.why_none += (found.why_none.empty() ? "" : ", and ") + one.why_none;
    found.is_uncounted = found.is_uncounted || one.kind == AcceleratorKind::kUncounted;
  }
  return found;
}

AcceleratorCount accelerator_apart(const Accelerators& accelerators, std::string_view word) {
  for (const AcceleratorCount& one : accelerators) {
    if (one.apart > 0 && is_counted_by(word, one)) return one;
  }
  return {};
}

std::string_view list_variable(AcceleratorKind kind) {
  switch (kind) {
    case AcceleratorKind::kNvidia:
      return "CUDA_VISIBLE_DEVICES";
    case AcceleratorKind::kAmd:
      return "HIP_VISIBLE_DEVICES";
    case AcceleratorKind::kIntel:
      return "ZE_AFFINITY_MASK";
    case AcceleratorKind::kAscend:
      return "ASCEND_RT_VISIBLE_DEVICES";
    case AcceleratorKind::kGaudi:
      return "HABANA_VISIBLE_MODULES";
    case AcceleratorKind::kUncounted:
      break;
  }
  return {};
}

std::string_view sought_by(std::string_view word) {
  const auto only = kind_of(word);
  return only ? names_of(*only).one : "GPU";
}

}  // namespace ddprun::launcher
