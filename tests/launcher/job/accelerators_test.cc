// Accelerators are counted from folders of text, as the kernel and drivers write them, and from
// variables. No device is needed.
#include "launcher/job/accelerators.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "launcher/job/visible_devices.h"
#include "tests/launcher/parse_support.h"
#include "tests/support/temporary_folder.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;
using Uuids = std::vector<std::string>;
using Devices = std::vector<int>;

const Uuids kFour = {"GPU-0aaa", "GPU-0abb", "GPU-1ccc", "GPU-2ddd"};

int cuda_count(const Uuids& uuids, const std::string& list) {
  return static_cast<int>(visible_to_cuda(uuids, list).gpus.size());
}

TEST(VisibleToCuda, TakesNumbersUpToTheFirstThatIsNoDevice) {
  EXPECT_EQ(cuda_count(kFour, ""), 0);
  EXPECT_EQ(visible_to_cuda(kFour, "3,1").gpus, (Devices{3, 1}));
  EXPECT_EQ(cuda_count(kFour, "0, 1"), 2);
  EXPECT_EQ(cuda_count(kFour, "0,-1,1"), 1);
  EXPECT_EQ(cuda_count(kFour, "0,9,1"), 1);
  EXPECT_EQ(cuda_count(kFour, "0,,1"), 1);
  EXPECT_EQ(cuda_count(kFour, "0,99999999999,1"), 1);
  EXPECT_EQ(cuda_count(kFour, "NoDevFiles"), 0);
  EXPECT_EQ(visible_to_cuda(kFour, "1gpu2,+2").gpus, (Devices{1, 2})) << "CUDA reads as strtoul(3)";
  EXPECT_EQ(cuda_count({}, "0"), 0);
}

TEST(VisibleToCuda, ShowsNothingOfAListThatNamesADeviceTwice) {
  EXPECT_EQ(cuda_count(kFour, "0,0"), 0);
  EXPECT_EQ(cuda_count(kFour, "0,00"), 0);
  EXPECT_EQ(cuda_count(kFour, "GPU-0aaa,GPU-0aa"), 0);
}

TEST(VisibleToCuda, MatchesUuidsWithThoseOfTheDriver) {
  EXPECT_EQ(visible_to_cuda(kFour, "GPU-2ddd,GPU-0aaa").gpus, (Devices{3, 0}));
  EXPECT_EQ(visible_to_cuda(kFour, "GPU-1").gpus, Devices{2}) << "one GPU alone begins so";
  EXPECT_EQ(visible_to_cuda(kFour, "GPU-1,GPU-0").gpus, Devices{2}) << "two begin so";
  EXPECT_EQ(visible_to_cuda(kFour, "GPU-0aaa,GPU-ffff,GPU-1ccc").gpus, Devices{0});
  EXPECT_EQ(visible_to_cuda(kFour, "GPU-0aaa,1").gpus, Devices{0}) << "the first word is a UUID";
  EXPECT_EQ(visible_to_cuda(kFour, "1,GPU-0aaa").gpus, Devices{1}) << "the first word is a number";
}

TEST(VisibleToCuda, BelievesAUuidWhereTheDriverDoesNotSayIts) {
  EXPECT_EQ(visible_to_cuda({"", ""}, "GPU-a,GPU-b,GPU-c").gpus,
            (Devices{kSomeDevice, kSomeDevice}));
  EXPECT_EQ(visible_to_cuda({"GPU-a", ""}, "GPU-a,GPU-b").gpus, (Devices{0, kSomeDevice}));
  EXPECT_EQ(cuda_count({"", ""}, "GPU-a,GPU-a"), 0);
}

TEST(VisibleToCuda, CountsInstancesOfMig) {
  EXPECT_EQ(visible_to_cuda(kFour, "MIG-1,MIG-2").instances, 2);
  EXPECT_EQ(visible_to_cuda(kFour, "MIG-1,MIG-2").gpus, Devices{});
  EXPECT_EQ(visible_to_cuda(kFour, "MIG-1,0,MIG-2").instances, 1);
  EXPECT_EQ(visible_to_cuda(kFour, "MIG-1,MIG-1").instances, 0);
  EXPECT_EQ(visible_to_cuda(kFour, "MIG-GPU-1ccc/1/0,MIG-GPU-1ccc/2/0").instances, 2);
  EXPECT_EQ(visible_to_cuda(kFour, "MIG-GPU-1ccc/1/0,MIG-GPU-ffff/2/0").instances, 1);
  EXPECT_EQ(visible_to_cuda({}, "MIG-1").instances, 0);
}

TEST(VisibleToRocr, TakesNumbersAndUuidsUpToTheFirstThatIsNoNewDevice) {
  EXPECT_EQ(visible_to_rocr(kFour, "2,0"), (Devices{2, 0}));
  EXPECT_EQ(visible_to_rocr(kFour, "2,gpu-0AAA,7,0"), (Devices{2, 0}));
  EXPECT_EQ(visible_to_rocr(kFour, "2,2,0"), Devices{2});
  EXPECT_EQ(visible_to_rocr(kFour, "1x"), Devices{});
  EXPECT_EQ(visible_to_rocr(kFour, ""), Devices{});
}

TEST(VisibleToRocr, ANumberMayRepeatAnIdThatTheDriverDoesNotSay) {
  EXPECT_EQ(visible_to_rocr({"GPU-1", ""}, "gpu-x,0,1"), (Devices{kSomeDevice, 0}));
  EXPECT_EQ(visible_to_rocr({"", ""}, "gpu-x,0,1"), (Devices{kSomeDevice, 0}));
  EXPECT_EQ(visible_to_rocr({"", ""}, "0,1,gpu-x"), (Devices{0, 1}));
  EXPECT_EQ(visible_to_hip({"", "", "GPU-1"}, "gpu-x,0,1,2"), (Devices{kSomeDevice, 0, 2}));
}

TEST(VisibleToHip, CountsADeviceThatIsNamedAgainOnce) {
  EXPECT_EQ(visible_to_hip(kFour, "2,2,0"), (Devices{2, 0}));
  EXPECT_EQ(visible_to_hip(kFour, "1,-1,0"), Devices{1});
  EXPECT_EQ(visible_to_hip(kFour, "GPU-1ccc,0"), (Devices{2, 0}));
}

TEST(VisibleToLevelZero, TakesDevicesOrTiles) {
  EXPECT_EQ(visible_to_level_zero(4, "3,1,1", true), (Devices{1, 3}));
  EXPECT_EQ(visible_to_level_zero(4, "0.0,1", true), Devices{1});
  EXPECT_EQ(visible_to_level_zero(4, "0.0,0.1,1,9,x", false), (Devices{0, 1}));
}

TEST(VisibleToSelector, TakesTheTermsOfLevelZero) {
  EXPECT_EQ(visible_to_selector(4, "level_zero:0,2"), 2);
  EXPECT_EQ(visible_to_selector(4, "LEVEL_ZERO:0;*:1;opencl:2"), 2);
  EXPECT_EQ(visible_to_selector(4, "level_zero:gpu"), 4);
  EXPECT_EQ(visible_to_selector(4, "opencl:cpu"), 0);
  for (const auto* other : {"!opencl:*", "level_zero:0.1", "what"})
    EXPECT_EQ(visible_to_selector(4, other), 4) << other;
}

class CountAccelerators : public FolderTest {
 protected:
  void write(const fs::path& name, const std::string& text = {}) const {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name) << text << '\n';
  }

  void add_nvidia(int minor, const std::string& uuid) const {
    write("dev/nvidia" + std::to_string(minor));
    add_listed(minor, uuid);
  }

  void add_listed(int minor, const std::string& uuid) const {
    write("proc/driver/nvidia/gpus/0000:0" + std::to_string(minor) + ":00.0/information",
          "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 42\nGPU UUID: \t " + uuid +
              "\nDevice Minor: \t " + std::to_string(minor));
  }

  // `id`: unique_id, in decimal as the kernel writes it.
  void add_amd(int node, int minor, const std::string& id) const {
    const fs::path own = "sys/class/kfd/kfd/topology/nodes/" + std::to_string(node);
    write(own / "properties", "cpu_cores_count 0\nsimd_count 304\ndrm_render_minor " +
                                  std::to_string(minor) + "\nunique_id " + id);
    write("dev/dri/renderD" + std::to_string(minor));
  }

  void add_amd_host() const {
    write("dev/kfd");
    write("sys/class/kfd/kfd/topology/nodes/0/properties",
          "cpu_cores_count 64\nsimd_count 0\ndrm_render_minor 0");
    add_amd(2, 128, "11");
    add_amd(10, 129, "4660");
    add_amd(3, 130, "0");
  }

  void add_intel(int minor, const std::string& slot, const std::string& driver = "xe",
                 const std::string& vendor = "0x8086") const {
    const std::string name = "renderD" + std::to_string(minor);
    write("sys/class/drm/" + name + "/device/vendor", vendor);
    write("sys/class/drm/" + name + "/device/uevent",
          "DRIVER=" + driver + "\nPCI_CLASS=30000\nPCI_SLOT_NAME=" + slot);
    write("dev/dri/" + name);
  }

  // The only kind that is here.
  AcceleratorCount only(const Variables& variables = {}) const {
    const Accelerators all = count_accelerators(folder, environment(variables));
    EXPECT_EQ(all.size(), 1U);
    return all.empty() ? AcceleratorCount{} : all.front();
  }

  int visible(const Variables& variables = {}) const { return only(variables).visible; }
};

TEST_F(CountAccelerators, FindsNoneWhereNoFileIsThere) {
  EXPECT_EQ(count_accelerators(folder, environment({})), Accelerators{});
}

TEST_F(CountAccelerators, CountsDeviceFilesOfNvidia) {
  write("dev/nvidiactl");
  write("dev/nvidia-uvm");
  for (const int minor : {0, 1, 10}) write("dev/nvidia" + std::to_string(minor));
  EXPECT_EQ(only(), (AcceleratorCount{AcceleratorKind::kNvidia, 3, 3, 3}));
  EXPECT_EQ(visible({{"CUDA_VISIBLE_DEVICES", "2,0"}}), 2);
  EXPECT_EQ(only({{"CUDA_VISIBLE_DEVICES", ""}}).why_none,
            "CUDA_VISIBLE_DEVICES='' hides 3 NVIDIA GPUs");
}

TEST_F(CountAccelerators, CountsTheDriversListWhereNoDeviceFileIsThere) {
  add_listed(0, "GPU-aaaa");
  add_listed(1, "GPU-" + std::string(8, '?'));
  EXPECT_EQ(visible(), 2);
  EXPECT_EQ(visible({{"CUDA_VISIBLE_DEVICES", "GPU-aaaa,GPU-bbbb,GPU-cccc"}}), 2);
}

TEST_F(CountAccelerators, MatchesUuidsWithTheDriversFiles) {
  add_nvidia(0, "GPU-aaaa");
  add_nvidia(1, "GPU-bbbb");
  add_listed(2, "GPU-cccc");
  EXPECT_EQ(visible(), 2) << "a container has no device file of the third";
  EXPECT_EQ(visible({{"CUDA_VISIBLE_DEVICES", "GPU-bbbb,GPU-a"}}), 2);
  EXPECT_EQ(visible({{"CUDA_VISIBLE_DEVICES", "GPU-bbbb,GPU-cccc,GPU-a"}}), 1);
  EXPECT_EQ(only({{"CUDA_VISIBLE_DEVICES", "GPU-cccc"}}).why_none,
            "CUDA_VISIBLE_DEVICES=GPU-cccc hides 2 NVIDIA GPUs");
}

TEST_F(CountAccelerators, ShowsAProcessOneInstanceOfMig) {
  add_nvidia(0, "GPU-aaaa");
  const AcceleratorCount count = only({{"CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2,MIG-3"}});
  EXPECT_EQ(count, (AcceleratorCount{AcceleratorKind::kNvidia, 1, 1, 3}));
}

TEST_F(CountAccelerators, CountsNodesOfKfdWithUnitsThatCompute) {
  add_amd_host();
  EXPECT_EQ(only(), (AcceleratorCount{AcceleratorKind::kAmd, 3, 3, 3}));
  fs::remove(folder / "dev/dri/renderD130");
  EXPECT_EQ(visible(), 2) << "a container has no device file of the third";
  fs::remove(folder / "dev/kfd");
  EXPECT_EQ(count_accelerators(folder, environment({})), Accelerators{});
}

TEST_F(CountAccelerators, CutsTheListByRocrAndThenByHip) {
  add_amd_host();
  EXPECT_EQ(visible({{"ROCR_VISIBLE_DEVICES", "2,0"}}), 2);
  EXPECT_EQ(visible({{"ROCR_VISIBLE_DEVICES", "2,0"}, {"HIP_VISIBLE_DEVICES", "1"}}), 1);
  EXPECT_EQ(visible({{"ROCR_VISIBLE_DEVICES", "2"}, {"HIP_VISIBLE_DEVICES", "0,2"}}), 1);
  EXPECT_EQ(visible({{"CUDA_VISIBLE_DEVICES", "0,1"}}), 2);
  EXPECT_EQ(visible({{"HIP_VISIBLE_DEVICES", "0"}, {"CUDA_VISIBLE_DEVICES", "0,1"}}), 1);
  // 4660 is 0x1234, and the GPU of that id is the last of three.
  EXPECT_EQ(visible({{"ROCR_VISIBLE_DEVICES", "GPU-0000000000001234"}}), 1);
  EXPECT_EQ(
      visible({{"ROCR_VISIBLE_DEVICES", "0,1"}, {"HIP_VISIBLE_DEVICES", "GPU-0000000000001234"}}),
      1)
      << "one of the two does not say its id";
  EXPECT_EQ(only({{"ROCR_VISIBLE_DEVICES", "9"}, {"HIP_VISIBLE_DEVICES", "0"}}).why_none,
            "ROCR_VISIBLE_DEVICES=9 hides 3 AMD GPUs");
  EXPECT_EQ(only({{"CUDA_VISIBLE_DEVICES", "-1"}}).why_none,
            "CUDA_VISIBLE_DEVICES=-1 hides 3 AMD GPUs");
}

TEST_F(CountAccelerators, CountsNoGpuThatThisUserMayNotOpen) {
  add_amd_host();
  fs::permissions(folder, fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
  for (const auto* open : {"dev/kfd", "dev/dri/renderD129", "dev/dri/renderD130"})
    fs::permissions(folder / open, fs::perms::all);
  fs::permissions(folder / "dev/dri/renderD128", fs::perms::none);
  const auto says = [this](int gpus, const std::string& why) {
    // Root may open all files.
    if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) std::exit(2);
    const AcceleratorCount count = only();
    std::exit(count.visible == gpus && count.why_none == why ? 0 : 1);
  };
  EXPECT_EXIT(says(2, ""), testing::ExitedWithCode(0), "");
  fs::permissions(folder / "dev/kfd", fs::perms::none);
  EXPECT_EXIT(says(0, "this user may not open /dev/kfd of 3 AMD GPUs"), testing::ExitedWithCode(0),
              "");
}

TEST_F(CountAccelerators, CountsRenderNodesOfIntelsDrivers) {
  add_intel(128, "0000:4d:00.0");
  add_intel(129, "0000:9a:00.0", "i915");
  add_intel(130, "0000:af:00.0", "vfio-pci");
  add_intel(131, "0000:bf:00.0", "nouveau", "0x10de");
  EXPECT_EQ(only(), (AcceleratorCount{AcceleratorKind::kIntel, 2, 2, 2}));
  EXPECT_EQ(visible({{"ZE_AFFINITY_MASK", "1"}}), 1);
  EXPECT_EQ(visible({{"ONEAPI_DEVICE_SELECTOR", "level_zero:0"}}), 1);
  EXPECT_EQ(only({{"ZE_AFFINITY_MASK", "7"}}).why_none, "ZE_AFFINITY_MASK=7 hides 2 Intel GPUs");
  fs::remove(folder / "dev/dri/renderD129");
  EXPECT_EQ(visible(), 1);
}

TEST_F(CountAccelerators, CountsTilesUnlessCardsAreWhole) {
  add_intel(128, "0000:4d:00.0");
  for (const auto* tile : {"tile0", "tile1"})
    fs::create_directories(folder / "sys/class/drm/renderD128/device" / tile);
  add_intel(129, "0000:9a:00.0", "i915");
  write("sys/class/drm/renderD129/device/device", "0x0bd5");
  for (const auto* unit : {"gt0", "gt1"})
    fs::create_directories(folder / "sys/class/drm/renderD129/device/drm/card1/gt" / unit);
  EXPECT_EQ(visible(), 4);
  EXPECT_EQ(visible({{"ZE_AFFINITY_MASK", "3"}}), 1);
  EXPECT_EQ(visible({{"ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE"}}), 2);
}

TEST_F(CountAccelerators, KnowsAnIntegratedGpu) {
  add_intel(128, "0000:00:02.0", "i915");
  EXPECT_TRUE(only().is_integrated);
  EXPECT_EQ(visible(), 1);
  add_intel(129, "0000:03:00.0");
  EXPECT_FALSE(only().is_integrated) << "a card is beside it";
  EXPECT_EQ(visible(), 1);
}

TEST_F(CountAccelerators, CountsDeviceFilesOfAscend) {
  write("dev/davinci_manager");
  for (const int device : {0, 1, 2, 3}) write("dev/davinci" + std::to_string(device));
  EXPECT_EQ(only(), (AcceleratorCount{AcceleratorKind::kAscend, 4, 4, 4}));
  EXPECT_EQ(visible({{"ASCEND_RT_VISIBLE_DEVICES", "1,3,4,0"}}), 2);
}

TEST_F(CountAccelerators, CountsDeviceFilesOfGaudisDriver) {
  for (const auto* name : {"accel0", "accel1", "accel_controlD0", "accel2"})
    write(fs::path("dev/accel") / name);
  for (const auto* name : {"accel0", "accel1"})
    write(fs::path("sys/class/accel") / name / "device/uevent", "DRIVER=habanalabs");
  write("sys/class/accel/accel2/device/uevent", "DRIVER=intel_vpu");
  EXPECT_EQ(only(), (AcceleratorCount{AcceleratorKind::kGaudi, 2, 2, 2}));
  EXPECT_EQ(visible({{"HABANA_VISIBLE_MODULES", "5"}}), 1);
  EXPECT_TRUE(only().names.empty());
  write("sys/class/accel/accel0/device/module_id", "6");
  write("sys/class/accel/accel1/device/module_id", "7");
  EXPECT_EQ(only().names, (std::vector<std::string>{"6", "7"}));
}

TEST_F(CountAccelerators, ReadsTheLinkOfADriver) {
  write("dev/accel/accel0");
  fs::create_directories(folder / "sys/class/accel/accel0/device");
  fs::create_symlink("/sys/bus/pci/drivers/habanalabs",
                     folder / "sys/class/accel/accel0/device/driver");
  EXPECT_EQ(only(), (AcceleratorCount{AcceleratorKind::kGaudi, 1, 1, 1}));
}

TEST_F(CountAccelerators, KnowsAGpuOfKfdByItsId) {
  write("dev/kfd");
  const fs::path node = "sys/class/kfd/kfd/topology/nodes/1";
  write(node / "properties", "drm_render_minor 128");
  write(node / "gpu_id", "0");
  write("dev/dri/renderD128");
  EXPECT_EQ(count_accelerators(folder, environment({})), Accelerators{});
  write(node / "gpu_id", "53000");
  EXPECT_EQ(visible(), 1);
}

TEST_F(CountAccelerators, NamesDevicesThatNoFileCounts) {
  write("dev/accel0");
  EXPECT_EQ(only().why_none,
            "the devices behind /dev/accel* (TPU) cannot be counted, so give their number");
  fs::remove(folder / "dev/accel0");
  write("dev/neuron0");
  EXPECT_EQ(only().why_none,
            "the devices behind /dev/neuron* (Trainium) cannot be counted, so give their number");
  fs::remove(folder / "dev/neuron0");
  write("dev/accel/accel0");
  EXPECT_EQ(only().why_none,
            "the devices behind /dev/accel/* (driver ?) cannot be counted, so give their number");
  write("sys/class/accel/accel0/device/uevent", "DRIVER=qaic");
  EXPECT_EQ(
      only().why_none,
      "the devices behind /dev/accel/* (driver qaic) cannot be counted, so give their number");
  write("sys/class/accel/accel0/device/uevent", "DRIVER=intel_vpu");
  EXPECT_EQ(count_accelerators(folder, environment({})), Accelerators{}) << "a laptop's NPU";
  write("dev/dxg");
  EXPECT_EQ(only().why_none,
            "the devices behind /dev/dxg (WSL) cannot be counted, so give their number");
  EXPECT_EQ(only().visible, 0);
}

}  // namespace
}  // namespace ddprun::launcher
