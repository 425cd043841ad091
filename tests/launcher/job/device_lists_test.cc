// Counts the devices of a table: four of one kind, and the variables that hide some. torch's own
// counts stand in the same table, and device_lists_test.py asks torch for them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "launcher/job/accelerators.h"
#include "tests/launcher/parse_support.h"
#include "tests/support/temporary_folder.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

class DeviceLists : public FolderTest {
 protected:
  void write(const std::string& kind, const fs::path& name, const std::string& text = {}) const {
    const fs::path path = folder / kind / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  }

  // Makes the files of device `number` of each kind, below a folder for each kind.
  void make(int number) const {
    const std::string n = std::to_string(number);
    const std::string render = std::to_string(128 + number);
    constexpr std::array kUuids = {"0aaa", "0abb", "1ccc", "2ddd"};
    // 0x1000000000000aaa and so on, in decimal as kfd writes it.
    constexpr std::array kIds = {"1152921504606849706", "1152921504606849723",
                                 "2305843009213697228", "3458764513820544477"};
    const auto index = static_cast<std::size_t>(number);
    write("cuda", "dev/nvidia" + n);
    write("cuda", "proc/driver/nvidia/gpus/0000:0" + n + ":00.0/information",
          fmt::format("GPU UUID: GPU-{}\nDevice Minor: {}", kUuids.at(index), number));
    write("rocm", "dev/kfd");
    write("rocm", "dev/dri/renderD" + render);
    write("rocm", "sys/class/kfd/kfd/topology/nodes/" + std::to_string(number + 1) + "/properties",
          fmt::format("simd_count 304\ndrm_render_minor {}\nunique_id {}", render, kIds.at(index)));
    write("xpu", "dev/dri/renderD" + render);
    write("xpu", "sys/class/drm/renderD" + render + "/device/vendor", "0x8086");
    write("xpu", "sys/class/drm/renderD" + render + "/device/uevent",
          "DRIVER=xe\nPCI_SLOT_NAME=0000:4" + n + ":00.0");
    write("npu", "dev/davinci" + n);
    write("hpu", "dev/accel/accel" + n);
    write("hpu", "sys/class/accel/accel" + n + "/device/uevent", "DRIVER=habanalabs");
  }
};

TEST_F(DeviceLists, LeaveAsManyDevicesAsTheTableSays) {
  for (int number = 0; number < 4; ++number) make(number);
  std::ifstream table(DDPRUN_DEVICE_LISTS);
  int cases = 0;
  for (std::string line; std::getline(table, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line.substr(0, line.find(" = ")));
    std::string kind;
    words >> kind;
    Variables variables;
    for (std::string word; words >> word;) {
      std::string value = word.substr(word.find('=') + 1);
      std::replace(value.begin(), value.end(), '~', ' ');
      variables[word.substr(0, word.find('='))] = value;
    }
    const Accelerators found = count_accelerators(folder / kind, environment(variables));
    ASSERT_EQ(found.size(), 1U) << line;
    EXPECT_EQ(found.front().visible, std::stoi(line.substr(line.find(" = ") + 3))) << line;
    ++cases;
  }
  EXPECT_GE(cases, 80);
}

}  // namespace
}  // namespace ddprun::launcher
