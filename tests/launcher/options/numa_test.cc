// The planner on hosts made of numbers, and the reader on a folder that looks like /sys and /proc.
#include "launcher/options/numa.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/allowed_cpus.h"
#include "base/number_ranges.h"
#include "launcher/job/numa_sysfs.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;
using Cpus = std::vector<int>;

// Two sockets with two NUMA nodes each, four cores a node. Two threads a core (sibling + 16), two
// cores a cache. GPUs 0 1 2 on node 1, GPU 3 on node 2.
NumaFacts two_sockets() {
  NumaFacts facts;
  for (int number = 0; number < 32; ++number) {
    const int core = number % 16;
    facts.cpus.push_back({number, core / 4, core / 8, core, core / 2 * 2});
  }
  facts.gpu_nodes = {1, 1, 1, 2};
  return facts;
}

Cpus plan_of(NumaMode mode, int worker, const NumaFacts& facts = two_sockets()) {
  const auto plan = plan_numa(mode, facts, worker + 1);
  if (!plan) throw std::runtime_error(plan.error().message());
  return plan->at(static_cast<std::size_t>(worker));
}

std::string error_of(NumaMode mode, const NumaFacts& facts, int workers) {
  const auto plan = plan_numa(mode, facts, workers);
  return plan ? "planned" : plan.error().message();
}

TEST(PlanNuma, NodeIsAllCpusOfTheGpusNode) {
  EXPECT_EQ(plan_of(NumaMode::kNode, 0), (Cpus{4, 5, 6, 7, 20, 21, 22, 23}));
  EXPECT_EQ(plan_of(NumaMode::kNode, 2), plan_of(NumaMode::kNode, 0));
  EXPECT_EQ(plan_of(NumaMode::kNode, 3), (Cpus{8, 9, 10, 11, 24, 25, 26, 27}));
}

TEST(PlanNuma, SocketIsAllNodesOfTheProcessor) {
  EXPECT_EQ(plan_of(NumaMode::kSocket, 0),
            (Cpus{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(plan_of(NumaMode::kSocket, 3).front(), 8);
}

TEST(PlanNuma, ExclusiveSharesCoresOutAndFirstGpusGetOneMore) {
  EXPECT_EQ(plan_of(NumaMode::kExclusive, 0), (Cpus{4, 5, 20, 21}));
  EXPECT_EQ(plan_of(NumaMode::kExclusive, 1), (Cpus{6, 22}));
  EXPECT_EQ(plan_of(NumaMode::kExclusive, 2), (Cpus{7, 23}));
  EXPECT_EQ(plan_of(NumaMode::kExclusive, 3), (Cpus{8, 9, 10, 11, 24, 25, 26, 27}));
}

TEST(PlanNuma, CoreComplexTakesTheLargestFirstAndGoesRound) {
  EXPECT_EQ(plan_of(NumaMode::kCoreComplex, 0), (Cpus{4, 5, 20, 21}));
  EXPECT_EQ(plan_of(NumaMode::kCoreComplex, 1), (Cpus{6, 7, 22, 23}));
  EXPECT_EQ(plan_of(NumaMode::kCoreComplex, 2), (Cpus{4, 5, 20, 21}));
  NumaFacts smaller = two_sockets();
  std::erase_if(smaller.cpus, [](const Cpu& cpu) { return cpu.number == 4; });
  EXPECT_EQ(plan_of(NumaMode::kCoreComplex, 0, smaller), (Cpus{6, 7, 22, 23}));
}

TEST(PlanNuma, HoldsToTheCpusThatWeMayUse) {
  NumaFacts facts = two_sockets();
  std::erase_if(facts.cpus, [](const Cpu& cpu) { return cpu.number >= 8 || cpu.number == 5; });
  EXPECT_EQ(plan_of(NumaMode::kNode, 0, facts), (Cpus{4, 6, 7}));
  EXPECT_EQ(plan_of(NumaMode::kExclusive, 1, facts), (Cpus{6}));
  EXPECT_EQ(error_of(NumaMode::kNode, facts, 4),
            "no CPU of NUMA node 2, GPU 3's, may be used here");
}

TEST(PlanNuma, SaysWhatIsMissing) {
  EXPECT_EQ(error_of(NumaMode::kNode, two_sockets(), 5),
            "5 workers need as many visible GPUs; there are 4");
  NumaFacts crowded = two_sockets();
  crowded.gpu_nodes.assign(5, 0);
  EXPECT_EQ(error_of(NumaMode::kExclusive, crowded, 1), "NUMA node 0 has 4 cores for 5 GPUs");
  EXPECT_EQ(error_of(NumaMode::kCoreComplex, crowded, 5), "planned");
}

TEST(CpuRanges, AreWrittenAndReadAsSysfsDoes) {
  EXPECT_EQ(number_ranges({0, 1, 2, 4, 6, 7}), "0-2,4,6-7");
  EXPECT_EQ(number_ranges({}), "");
  EXPECT_EQ(parse_cpu_ranges("0-2,4,6-7\n"), (Cpus{0, 1, 2, 4, 6, 7}));
  EXPECT_EQ(parse_cpu_ranges(""), Cpus{});
  EXPECT_EQ(parse_cpu_ranges("8191"), Cpus{kMaxCpus - 1});
  for (const auto* text : {"x", "2-1", "-1", "1-", "0-8192", "0-99999999"}) {
    EXPECT_EQ(parse_cpu_ranges(text), std::nullopt) << text;
  }
}

class NumaSysfs : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ddprun_numa_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text << "\n";
  }

  void add_cpu(int number, int package, const std::string& core, const std::string& cache) const {
    const fs::path folder = "sys/devices/system/cpu/cpu" + std::to_string(number);
    write(folder / "topology/physical_package_id", std::to_string(package));
    write(folder / "topology/thread_siblings_list", core);
    write(folder / "cache/index0/type", "Data");
    write(folder / "cache/index0/level", "1");
    write(folder / "cache/index0/shared_cpu_list", core);
    write(folder / "cache/index1/type", "Instruction");
    write(folder / "cache/index1/level", "4");
    write(folder / "cache/index1/shared_cpu_list", "0-99");
    write(folder / "cache/index2/type", "Unified");
    write(folder / "cache/index2/level", "3");
    write(folder / "cache/index2/shared_cpu_list", cache);
  }

  void add_gpu(const std::string& address, int minor, const std::string& node) const {
    write(fs::path("proc/driver/nvidia/gpus") / address / "information",
          "Model: \t\t NVIDIA X\nGPU UUID: \t GPU-" + std::to_string(minor) +
              "abc\nDevice Minor: \t " + std::to_string(minor));
    write(fs::path("sys/bus/pci/devices") / address / "numa_node", node);
  }

  void add_host() const {
    write("sys/devices/system/node/node0/cpulist", "0-1");
    write("sys/devices/system/node/node1/cpulist", "2-3");
    write("sys/devices/system/node/possible", "0-1");
    add_cpu(0, 0, "0-1", "0-1");
    add_cpu(1, 0, "0-1", "0-1");
    add_cpu(2, 1, "2", "2-3");
    add_cpu(3, 1, "3", "2-3");
    add_gpu("0000:3b:00.0", 1, "1");
    add_gpu("0000:1a:00.0", 0, "-1");
  }

  Result<NumaFacts> read(const std::optional<std::string>& visible = {}) const {
    return read_numa_facts(root_, {1, 2, 3}, visible);
  }

  fs::path root_;
};

TEST_F(NumaSysfs, ReadsCpusAndGpus) {
  add_host();
  const NumaFacts facts = *read();
  EXPECT_EQ(facts.gpu_nodes, (Cpus{0, 1}));  // by PCI address; -1 is node 0
  ASSERT_EQ(facts.cpus.size(), 3U);
  EXPECT_EQ(facts.cpus[0].number, 1);
  EXPECT_EQ(facts.cpus[0].core, 0);
  EXPECT_EQ(facts.cpus[2].node, 1);
  EXPECT_EQ(facts.cpus[2].package, 1);
  EXPECT_EQ(facts.cpus[2].core, 3);
  EXPECT_EQ(facts.cpus[2].cache, 2);
}

TEST_F(NumaSysfs, FollowsCudaVisibleDevices) {
  add_host();
  EXPECT_EQ(read("1, 0")->gpu_nodes, (Cpus{1, 0}));
  EXPECT_EQ(read("GPU-1ab")->gpu_nodes, (Cpus{1}));
  EXPECT_EQ(read("0,7,1")->gpu_nodes, (Cpus{0}));
  EXPECT_EQ(read("")->gpu_nodes, Cpus{});
}

TEST_F(NumaSysfs, EndsAtAUuidThatNoGpuHas) {
  add_host();
  EXPECT_EQ(read("GPU-0abc,GPU-7abc,GPU-1abc")->gpu_nodes, Cpus{0});
  write("proc/driver/nvidia/gpus/0000:3b:00.0/information", "GPU UUID: \t GPU-????????");
  EXPECT_EQ(read("GPU-0abc,GPU-1abc")->gpu_nodes, Cpus{0}) << "nobody can place the second";
}

TEST_F(NumaSysfs, TellsWhetherAllGpusAreOfOneModel) {
  add_host();
  EXPECT_TRUE(read()->gpus_are_alike);
  write("proc/driver/nvidia/gpus/0000:3b:00.0/information",
        "Model: \t\t NVIDIA Y\nDevice Minor: \t 1");
  EXPECT_FALSE(read()->gpus_are_alike);
  EXPECT_FALSE(read("0")->gpus_are_alike) << "0 is the fastest of all";
  write("dev/nvidia0", "");
  EXPECT_TRUE(read()->gpus_are_alike) << "a container has one alone";
}

TEST_F(NumaSysfs, LeavesOutGpusThatAContainerHides) {
  add_host();
  write("dev/nvidiactl", "");
  EXPECT_EQ(read()->gpu_nodes, (Cpus{0, 1}));
  write("dev/nvidia1", "");
  EXPECT_EQ(read()->gpu_nodes, (Cpus{1}));
}

TEST_F(NumaSysfs, NamesWhatIsMissing) {
  EXPECT_EQ(read().error().message(), "no NVIDIA driver, or no GPU of it, on this node");
  add_host();
  const fs::path file = root_ / "sys/devices/system/cpu/cpu2/topology/thread_siblings_list";
  fs::remove(file);
  EXPECT_EQ(read().error().message(), file.string() + ": cannot be read");
}

TEST_F(NumaSysfs, TakesANodeForOneGroupWhereCachesAreHidden) {
  add_host();
  for (const int cpu : {1, 2, 3})
    fs::remove_all(root_ / ("sys/devices/system/cpu/cpu" + std::to_string(cpu)) / "cache");
  EXPECT_EQ(plan_of(NumaMode::kCoreComplex, 1, *read()), (Cpus{2, 3}));
}

TEST(AllowedCpus, AreThoseOfThisProcess) {
  const Cpus cpus = allowed_cpus();
  EXPECT_FALSE(cpus.empty());
  EXPECT_TRUE(std::is_sorted(cpus.begin(), cpus.end()));
}

}  // namespace
}  // namespace ddprun::launcher
