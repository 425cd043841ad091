// GPUs that read each other's memory, on machines that are folders of files, and tables as
// nvidia-smi prints them. No GPU is needed.
#include <gtest/gtest.h>

#include "launcher/doctor/gather_peer_access.h"
#include "launcher/doctor/judge_devices.h"
#include "launcher/doctor/judge_peer_access.h"
#include "tests/support/temporary_folder.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kAcsAt = 0x140;

// A bridge's configuration, with the capability for ACS behind another one.
std::string configuration(unsigned char control) {
  std::string bytes(4096, '\0');
  const auto head = [&](std::size_t at, unsigned id, std::size_t next) {
    const auto number = static_cast<unsigned>(id | 1U << 16U | next << 20U);
    for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(number >> 8U * i);
  };
  head(0x100, 0x01, kAcsAt);  // errors
  head(kAcsAt, 0x0d, 0);
  bytes[kAcsAt + 6] = static_cast<char>(control);
  return bytes;
}

class PeerPaths : public FolderTest {
 protected:
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << text;
  }
  // Two GPUs below one bridge.
  void make_machine(const std::string& domain, const std::string& bridge_configuration) {
    for (const std::string gpu : {"0000:02:00.0", "0000:03:00.0"}) {
      const std::string device = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/" + gpu;
      write("proc/driver/nvidia/gpus/" + gpu + "/information", "Model: H100\n");
      write(device + "/vendor", "0x10de\n");
      if (!domain.empty()) write(device + "/iommu_group/type", domain + "\n");
      fs::create_directories(folder / "sys/bus/pci/devices");
      fs::create_directory_symlink("../../../../" + device, folder / "sys/bus/pci/devices" / gpu);
    }
    write("sys/devices/pci0000:00/0000:00:01.0/config", configuration(0x01));
    write("sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/config", bridge_configuration);
  }
};

TEST_F(PeerPaths, AreStraightWithoutIommuAndAcs) {
  make_machine("", configuration(0x01));
  const auto facts = gather_peer_paths(folder);
  EXPECT_EQ(facts.iommu, "");
  EXPECT_EQ(facts.redirecting, std::vector<std::string>{});
  EXPECT_FALSE(facts.is_acs_hidden);
}

TEST_F(PeerPaths, GoThroughAnIommuThatTranslates) {
  make_machine("DMA-FQ", configuration(0));
  EXPECT_EQ(gather_peer_paths(folder).iommu, "DMA-FQ") << "no unit has a name";
  write("sys/class/iommu/dmar0/intel-iommu/version", "1:0\n");
  EXPECT_EQ(gather_peer_paths(folder).iommu, "dmar0");
}

TEST_F(PeerPaths, AreStraightWhereTheIommuLetsThemThrough) {
  make_machine("identity", configuration(0));
  write("sys/class/iommu/ivhd0/version", "1\n");
  EXPECT_EQ(gather_peer_paths(folder).iommu, "");
}

TEST_F(PeerPaths, AreToldByTheCommandLineOfAKernelThatSaysNoDomain) {
  make_machine("", configuration(0));
  write("sys/class/iommu/ivhd0/version", "1\n");
  write("proc/cmdline", "root=/dev/vda1 amd_iommu=on\n");
  EXPECT_EQ(gather_peer_paths(folder).iommu, "ivhd0");
  write("proc/cmdline", "root=/dev/vda1 amd_iommu=on iommu=pt\n");
  EXPECT_EQ(gather_peer_paths(folder).iommu, "");
}

TEST_F(PeerPaths, AreRedirectedByABridgeWithAcs) {
  make_machine("", configuration(0x1d));
  EXPECT_EQ(gather_peer_paths(folder).redirecting, std::vector<std::string>{"0000:01:00.0"});
}

TEST_F(PeerPaths, AreStraightThroughABridgeWithoutExtendedCapabilities) {
  make_machine("", configuration(0x1d).substr(0, 256));
  EXPECT_FALSE(gather_peer_paths(folder).is_acs_hidden);
}

TEST_F(PeerPaths, AreUnknownWhereTheConfigurationIsCutShort) {
  make_machine("", configuration(0x1d).substr(0, 64));  // as a user who is not root gets it
  const auto facts = gather_peer_paths(folder);
  EXPECT_TRUE(facts.is_acs_hidden);
  EXPECT_EQ(facts.redirecting, std::vector<std::string>{});
}

TEST_F(PeerPaths, EndAtAListOfCapabilitiesThatGoesRound) {
  std::string bytes = configuration(0);
  bytes[kAcsAt] = 0x02;                                // another capability, followed by
  bytes[kAcsAt + 3] = static_cast<char>(0x100 >> 4U);  // the first one
  make_machine("", bytes);
  EXPECT_EQ(gather_peer_paths(folder).redirecting, std::vector<std::string>{});
}

TEST_F(PeerPaths, SayNothingOfAMachineWithoutGpus) {
  write("sys/class/iommu/dmar0/version", "1\n");
  EXPECT_EQ(gather_peer_paths(folder).iommu, "");
}

PeerAccessFacts read_table(const std::string& text) {
  PeerAccessFacts facts;
  read_peer_table(text, facts);
  return facts;
}

TEST(PeerTable, NamesEachPairThatIsRefusedOnce) {
  const auto facts = read_table(
      " \tGPU0\tGPU1\tGPU2\t\n GPU0\tX\tOK\tCNS\t\n GPU1\tOK\tX\tCNS\t\n GPU2\tCNS\tCNS\tX\t\n\n"
      "Legend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"
      "  GNS  = GPU not supported\n");
  EXPECT_EQ(facts.gpus_asked, 3);
  EXPECT_EQ(facts.refused,
            (std::vector<RefusedPair>{{"GPU0", "GPU2", "CNS"}, {"GPU1", "GPU2", "CNS"}}));
}

TEST(PeerTable, HasAHeadThatIsUnderlined) {
  const auto facts = read_table(
      " \t\x1b[4mGPU0\tGPU1\t\x1b[0m\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n\nLegend:\n\x1b[");
  EXPECT_EQ(facts.gpus_asked, 2);
  EXPECT_EQ(facts.refused, (std::vector<RefusedPair>{{"GPU0", "GPU1", "GNS"}}));
}

TEST(PeerTable, IsNoneInOtherTexts) {
  EXPECT_EQ(read_table("").gpus_asked, 0);
  EXPECT_EQ(read_table("Invalid combination of input arguments.\n").gpus_asked, 0);
  EXPECT_EQ(read_table("GPU0 GPU1\nGPU0 X\n").gpus_asked, 0) << "a row is cut short";
}

std::string judged(const PeerAccessFacts& peers,
                   const std::map<std::string, std::string>& variables = {}, int gpus = 2) {
  const NodeQuestion question{.gpus = gpus, .variables = variables};
  const NodeFacts facts{.gpus = GpuFacts{.listed = gpus, .peers = peers}};
  Findings found;
  judge_peer_access(question, facts, found);
  judge_variables(question, facts, found);
  return text_of(found);
}

TEST(PeerAccess, IsSaidOfTwoGpusAndMore) {
  EXPECT_EQ(judged({.gpus_asked = 2}), "ok   peer access: 2 GPUs reach each other's memory\n");
  EXPECT_EQ(judged({.gpus_asked = 2, .is_acs_hidden = true}),
            "ok   peer access: 2 GPUs reach each other's memory; ACS is shown to root alone\n");
  EXPECT_EQ(judged({.gpus_asked = 1, .iommu = "dmar0"}, {}, 1), "");
  EXPECT_EQ(judged({.iommu = "dmar0"}, {}, 0), "");
}

TEST(PeerAccess, NamesPairsWithoutIt) {
  EXPECT_EQ(judged({.gpus_asked = 2, .refused = {{"GPU0", "GPU1", "CNS"}}}),
            "warn peer access: none between GPU0 and GPU1 (the chipset does not support it): sums "
            "go through shared memory, more slowly — `nvidia-smi topo -m` shows what is between "
            "them\n");
  EXPECT_NE(judged({.gpus_asked = 3, .refused = {{"GPU0", "GPU2", "U"}, {"GPU1", "GPU2", "U"}}})
                .find("none between GPU0 and GPU2 (U), and 1 more: "),
            std::string::npos);
}

TEST(PeerAccess, NamesIommuAndAcsAndTheCommandThatProvesThem) {
  EXPECT_EQ(judged({.gpus_asked = 2, .iommu = "dmar0"}),
            "warn IOMMU: dmar0 translates what GPUs send to each other: sums of NCCL may be slow, "
            "or the first one hangs with all GPUs at 100 % — `NCCL_P2P_DISABLE=1 ddprun …` "
            "goes on if it is that; then iommu=pt on the kernel's command line\n");
  EXPECT_EQ(
      judged({.gpus_asked = 2, .redirecting = {"0000:01:00.0", "0000:40:01.0"}}),
      "warn ACS: on at 0000:01:00.0, 0000:40:01.0, so what GPUs send to each other goes "
      "through the processor: sums of NCCL may be slow, or the first one hangs with all GPUs at "
      "100 % — `NCCL_P2P_DISABLE=1 ddprun …` goes on if it is that; then `setpci -s "
      "0000:01:00.0 ECAP_ACS+6.w=0000`, or off in the BIOS\n");
}

TEST(PeerAccess, IsNotBentWhereNoPairHasIt) {
  EXPECT_EQ(judged({.gpus_asked = 2, .refused = {{"GPU0", "GPU1", "GNS"}}, .iommu = "dmar0"})
                .find("IOMMU"),
            std::string::npos);
  EXPECT_NE(judged({.iommu = "dmar0"}).find("warn IOMMU: "), std::string::npos)
      << "nvidia-smi gave no answer";
}

TEST(PeerAccess, MayBeOffWhereItIsBent) {
  for (const auto& variable : std::vector<std::pair<std::string, std::string>>{
           {"NCCL_P2P_DISABLE", "1"}, {"NCCL_P2P_LEVEL", "loc"}, {"NCCL_P2P_LEVEL", "0"}}) {
    EXPECT_EQ(judged({.gpus_asked = 2, .iommu = "dmar0"}, {variable}),
              "ok   peer access: switched off, as IOMMU or ACS here want it\n"
              "ok   NCCL and Gloo: 1 variable set, none in the way\n");
  }
}

TEST(PeerAccess, KnowsItsVariables) {
  EXPECT_EQ(judged({}, {{"NCCL_SHM_DISABLE", "1"}}, 4),
            "warn NCCL_SHM_DISABLE: 4 GPUs without peer access go through the "
            "network — `unset NCCL_SHM_DISABLE`\n");
  EXPECT_EQ(judged({}, {{"NCCL_P2P_LEVEL", "NVLINK"}}),
            "warn NCCL_P2P_LEVEL: NVLINK is no level; there are LOC, NVL, PIX, "
            "PXB, PHB, SYS — `unset NCCL_P2P_LEVEL`\n");
  EXPECT_NE(judged({}, {{"NCCL_P2P_LEVEL", "phb"}}).find("none in the way"), std::string::npos);
  EXPECT_NE(judged({}, {{"NCCL_SHM_DISABLE", "1"}}, 1).find("none in the way"), std::string::npos);
}

}  // namespace
}  // namespace ddprun::launcher
