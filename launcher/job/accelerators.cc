#include "launcher/job/accelerators.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "base/numbers.h"
#include "launcher/job/device_files.h"
#include "launcher/job/nvidia_gpus.h"
#include "launcher/job/visible_devices.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

// A variable as users type it.
std::string as_typed(const char* variable, const std::string& value) {
  return fmt::format("{}={}", variable, value.empty() ? "''" : value);
}

// Says of a count why it is 0. `hider`: a variable and its value.
void explain(AcceleratorCount& count, const std::string& hider) {
  if (count.visible > 0 || count.apart > 0) return;
  count.why_none = fmt::format("{} hides {}", hider, counted(count.here, count.kind));
}

AcceleratorCount count_nvidia(const fs::path& root, const EnvLookup& env) {
  std::vector<std::string> uuids;
  for (const NvidiaGpu& gpu : nvidia_gpus(root)) uuids.push_back(gpu.uuid);
  const int here = static_cast<int>(uuids.size());
  AcceleratorCount count{AcceleratorKind::kNvidia, here, here, here};
  const auto list = env("CUDA_VISIBLE_DEVICES");
  if (!list || here == 0) return count;
  const CudaDevices devices = visible_to_cuda(uuids, *list);
  const int gpus = static_cast<int>(devices.gpus.size());
  count.visible = gpus + std::min(devices.instances, 1);
  count.apart = gpus + devices.instances;
  explain(count, as_typed("CUDA_VISIBLE_DEVICES", *list));
  return count;
}

// The GPUs of a node that a program may open, and the file that it may not.
struct OpenedGpus {
  int here = 0;
  std::vector<std::string> uuids{};  // empty where the driver does not say it
  fs::path closed{};
};

// Returns whether a folder of kfd, AMD's compute driver, is a GPU's. Processors have folders, too,
// without a SIMD unit and with the id 0.
bool is_amd_gpu(const fs::path& node, std::uint64_t simd_units) {
  return simd_units > 0 ||
         leading_number<std::uint64_t>(read_text(node / "gpu_id")).value_or(0) != 0;
}

// A container sees all folders of kfd, and device files only for its own GPUs.
OpenedGpus amd_gpus(const fs::path& root) {
  const fs::path folder = root / "sys/class/kfd/kfd/topology/nodes";
  OpenedGpus found;
  if (!is_there(root / "dev/kfd")) return found;
  for (const int node : numbers_in(folder, "")) {
    const std::string text = read_text(folder / std::to_string(node) / "properties");
    const auto number = [&text](const char* name) {
      return leading_number<std::uint64_t>(value_in(text, name, ' ')).value_or(0);
    };
    if (!is_amd_gpu(folder / std::to_string(node), number("simd_count"))) continue;
    const auto minor = number("drm_render_minor");
    const fs::path device = root / "dev/dri" / fmt::format("renderD{}", minor);
    if (minor != 0 && !is_there(device)) continue;
    ++found.here;
    if (minor != 0 && !may_open(device)) {
      found.closed = device;
      continue;
    }
    const auto id = number("unique_id");
    found.uuids.push_back(id == 0 ? "" : fmt::format("GPU-{:016x}", id));
  }
  if (!may_open(root / "dev/kfd")) {
    found.closed = root / "dev/kfd";
    found.uuids.clear();
  }
  return found;
}

std::string cannot_open(const fs::path& root, const fs::path& file, const std::string& what) {
  return fmt::format("this user may not open /{} of {}", file.lexically_relative(root).string(),
                     what);
}

AcceleratorCount count_amd(const fs::path& root, const EnvLookup& env) {
  const OpenedGpus found = amd_gpus(root);
  std::vector<std::string> uuids = found.uuids;
  AcceleratorCount count{AcceleratorKind::kAmd, found.here};
  const auto cut = [&](const char* variable, auto visible) {
    const auto list = env(variable);
    if (!list || uuids.empty()) return;
    std::vector<std::string> left;
    for (const int device : visible(uuids, *list))
      left.push_back(device < 0 ? "" : uuids[static_cast<std::size_t>(device)]);
    uuids = std::move(left);
    if (uuids.empty()) explain(count, as_typed(variable, *list));
  };
  if (uuids.empty() && found.here > 0)
    count.why_none = cannot_open(root, found.closed, counted(found.here, count.kind));
  cut("ROCR_VISIBLE_DEVICES", visible_to_rocr);
  cut(env("HIP_VISIBLE_DEVICES") ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES", visible_to_hip);
  count.visible = count.apart = static_cast<int>(uuids.size());
  return count;
}

struct IntelGpu {
  fs::path render{};  // its device file
  bool is_integrated = false;
  int tiles = 1;
};

// The tiles of a card, which are its devices by default. The driver xe has a folder for each. i915
// has one for each graphics unit, and these are tiles on the cards of the Max series.
int tiles_of(const fs::path& device) {
  auto tiles = numbers_in(device, "tile").size();
  const std::string id = read_text(device / "device");
  if (tiles == 0 && (id.starts_with("0x0bd") || id.starts_with("0x0be"))) {
    for (const int card : numbers_in(device / "drm", "card"))
      tiles = numbers_in(device / "drm" / fmt::format("card{}", card) / "gt", "gt").size();
  }
  return std::max(1, static_cast<int>(tiles));
}

// An integrated GPU beside a card is left out, as torch.xpu does.
std::vector<IntelGpu> intel_gpus(const fs::path& root) {
  std::vector<IntelGpu> gpus;
  for (const int minor : numbers_in(root / "sys/class/drm", "renderD")) {
    const std::string name = fmt::format("renderD{}", minor);
    const fs::path device = root / "sys/class/drm" / name / "device";
    if (read_text(device / "vendor") != "0x8086") continue;
    const std::string about = read_text(device / "uevent");
    const std::string driver = driver_of(device);
    if (driver != "xe" && driver != "i915") continue;
    if (!is_there(root / "dev/dri" / name)) continue;
    // The GPU of an Intel processor always has this address.
    const bool is_integrated = value_in(about, "PCI_SLOT_NAME", '=') == "0000:00:02.0";
    gpus.push_back({root / "dev/dri" / name, is_integrated, tiles_of(device)});
  }
  const auto is_integrated = [](const IntelGpu& gpu) { return gpu.is_integrated; };
  if (!std::all_of(gpus.begin(), gpus.end(), is_integrated)) std::erase_if(gpus, is_integrated);
  return gpus;
}

AcceleratorCount count_intel(const fs::path& root, const EnvLookup& env) {
  const bool is_flat = env("ZE_FLAT_DEVICE_HIERARCHY").value_or("") != "COMPOSITE";
  AcceleratorCount count{AcceleratorKind::kIntel};
  fs::path closed;
  int devices = 0;
  for (const IntelGpu& gpu : intel_gpus(root)) {
    const int tiles = is_flat ? gpu.tiles : 1;
    count.here += tiles;
    count.is_integrated = gpu.is_integrated;
    if (may_open(gpu.render))
      devices += tiles;
    else
      closed = gpu.render;
  }
  if (devices == 0 && count.here > 0)
    count.why_none = cannot_open(root, closed, counted(count.here, count.kind));
  if (devices > 0 && count.is_integrated)
    count.why_none = "the Intel GPU is integrated, and xpu alone counts it";
  const auto cut = [&](const char* variable, auto visible) {
    const auto list = env(variable);
    if (!list || list->empty() || devices == 0) return;
    devices = visible(*list);
    if (devices == 0) explain(count, as_typed(variable, *list));
  };
  cut("ZE_AFFINITY_MASK", [&](const std::string& mask) {
    return static_cast<int>(visible_to_level_zero(devices, mask, is_flat).size());
  });
  cut("ONEAPI_DEVICE_SELECTOR",
      [&](const std::string& selector) { return visible_to_selector(devices, selector); });
  count.visible = count.apart = devices;
  return count;
}

// A kind whose devices are counted, and cut by one list of numbers.
AcceleratorCount count_numbered(AcceleratorKind kind, int here, const EnvLookup& env,
                                const char* variable, int (*visible)(int, std::string_view)) {
  AcceleratorCount count{kind, here, here, here};
  const auto list = env(variable);
  if (!list || here == 0) return count;
  count.visible = count.apart = visible(here, *list);
  explain(count, as_typed(variable, *list));
  return count;
}

// Devices of the kernel's accelerator class: those of Gaudi, and others.
struct AccelDevices {
  int gaudis = 0;
  std::vector<std::string> modules{};  // of the Gaudis, where each says its own
  std::string other{};                 // the driver of one that is no Gaudi; "?" if nothing says it
};

// Laptops and desktops have an NPU of these drivers. No backend of torch trains on one.
bool is_of_a_laptop(std::string_view driver) {
  return driver == "intel_vpu" || driver == "amdxdna";
}

AccelDevices accel_devices(const fs::path& root) {
  AccelDevices found;
  for (const int number : numbers_in(root / "dev/accel", "accel")) {
    const fs::path device = root / "sys/class/accel" / fmt::format("accel{}", number) / "device";
    const std::string driver = driver_of(device);
    if (driver == "habanalabs") {
      ++found.gaudis;
      const std::string module = read_text(device / "module_id");
      if (!module.empty()) found.modules.push_back(module);
    } else if (!is_of_a_laptop(driver)) {
      found.other = driver.empty() ? "?" : driver;
    }
  }
  return found;
}

AcceleratorCount count_gaudi(const AccelDevices& found, const EnvLookup& env) {
  AcceleratorCount count = count_numbered(AcceleratorKind::kGaudi, found.gaudis, env,
                                          "HABANA_VISIBLE_MODULES", visible_to_gaudi);
  if (static_cast<int>(found.modules.size()) == found.gaudis) count.names = found.modules;
  return count;
}

// The device files of kinds that no file counts.
AcceleratorCount find_uncounted(const fs::path& root, const std::string& accel_driver) {
  AcceleratorCount count{AcceleratorKind::kUncounted};
  const auto add = [&](const std::string& file) {
    count.here = 1;
    count.why_none =
        fmt::format("the devices behind {} cannot be counted, so give their number", file);
  };
  if (!accel_driver.empty()) add(fmt::format("/dev/accel/* (driver {})", accel_driver));
  if (!numbers_in(root / "dev", "accel").empty()) add("/dev/accel* (TPU)");
  if (!numbers_in(root / "dev", "neuron").empty()) add("/dev/neuron* (Trainium)");
  if (is_there(root / "dev/dxg")) add("/dev/dxg (WSL)");
  return count;
}

}  // namespace

Accelerators count_accelerators(const fs::path& root, const EnvLookup& env) {
  const AccelDevices accel = accel_devices(root);
  const int npus = static_cast<int>(numbers_in(root / "dev", "davinci").size());
  Accelerators all = {count_nvidia(root, env),
                      count_amd(root, env),
                      count_intel(root, env),
                      count_numbered(AcceleratorKind::kAscend, npus, env,
                                     "ASCEND_RT_VISIBLE_DEVICES", visible_to_ascend),
                      count_gaudi(accel, env),
                      find_uncounted(root, accel.other)};
  std::erase_if(all, [](const AcceleratorCount& count) { return count.here == 0; });
  return all;
}

}  // namespace ddprun::launcher
