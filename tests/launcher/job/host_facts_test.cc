// The real probes, on a folder of files made for it.
#include "launcher/job/host_facts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <fstream>

#include "base/allowed_cpus.h"
#include "tests/launcher/parse_support.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

class RealFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ddprun_host_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text, bool executable) const {
    const fs::path path = folder_ / name;
    std::ofstream(path) << text;
    fs::permissions(path, executable ? fs::perms::owner_all : fs::perms::owner_read);
    return path.string();
  }

  fs::path folder_;
};

TEST_F(RealFiles, AreToldApartByTheirFirstBytes) {
  const CommandFacts facts = real_command_facts(environment({}));
  EXPECT_EQ(facts.inspect(write("a.sh", "#!/bin/sh\n", true)),
            (FileFacts{FileKind::kOtherScript, true}));
  EXPECT_EQ(facts.inspect(write("a.py", "print(1)\n", false)),
            (FileFacts{FileKind::kPlain, false}));
  EXPECT_EQ(facts.inspect(write("empty", "", false)).kind, FileKind::kPlain);
  EXPECT_EQ(facts.inspect("/proc/self/exe"), (FileFacts{FileKind::kElf, true}));
  EXPECT_EQ(facts.inspect(folder_).kind, FileKind::kDirectory);
  EXPECT_EQ(facts.inspect(folder_ / "none").kind, FileKind::kMissing);
  EXPECT_EQ(facts.inspect((folder_ / "a.sh" / "x").string()).kind, FileKind::kMissing);
}

TEST_F(RealFiles, ADeviceIsNotRead) {
  EXPECT_EQ(real_command_facts(environment({})).inspect("/dev/null").kind, FileKind::kPlain);
}

TEST_F(RealFiles, AreFoundOnPathInItsOrder) {
  fs::create_directories(folder_ / "one/tool");  // a folder of the name is passed over
  fs::create_directories(folder_ / "two");
  fs::create_directories(folder_ / "three");
  write("two/tool", "#!/bin/sh\n", false);  // as is a file that is not executable
  const std::string found = write("three/tool", "#!/bin/sh\n", true);
  const std::string path = (folder_ / "none").string() + ":" + (folder_ / "one").string() + ":" +
                           (folder_ / "two").string() + ":" + (folder_ / "three").string();
  const CommandFacts facts = real_command_facts(environment({{"PATH", path}}));
  EXPECT_EQ(facts.find_on_path("tool"), found);
  EXPECT_EQ(facts.find_on_path("none"), std::nullopt);
  EXPECT_EQ(facts.find_on_path(""), std::nullopt);
}

TEST(RealCommandFacts, HaveAPathWhereNoneIsSet) {
  const CommandFacts facts = real_command_facts(environment({}));
  EXPECT_TRUE(facts.find_on_path("sh").has_value());
  EXPECT_EQ(facts.python_exec, std::nullopt);
  EXPECT_EQ(facts.python_beside_us(),
            std::nullopt);  // a test program lies in no virtual environment
  EXPECT_EQ(real_command_facts(environment({{"PYTHON_EXEC", "py"}})).python_exec, "py");
}

class UsersPythons : public RealFiles {
 protected:
  // An environment with a python3; returns its folder.
  std::string make(const std::string& name, const std::string& packages) {
    fs::create_directories(folder_ / name / "bin");
    if (!packages.empty()) fs::create_directories(folder_ / name / packages);
    fs::copy_file("/bin/sh", folder_ / name / "bin/python3");
    return (folder_ / name).string();
  }
};

TEST_F(UsersPythons, AreThoseOfTheEnvironmentsAndOfPath) {
  const std::string project = make("project", "");
  const std::string conda = make("conda", "lib/python3.11/site-packages/torch");
  const std::string system = make("usr", "lib/python3/dist-packages/torch");
  const std::string path = project + "/bin:" + system + "/bin";
  const auto pythons = [&](std::map<std::string, std::string> variables) {
    return real_command_facts(environment(std::move(variables))).pythons();
  };
  EXPECT_EQ(pythons({{"PATH", path}, {"VIRTUAL_ENV", project}, {"CONDA_PREFIX", conda}}),
            (std::vector<PythonPlace>{{project + "/bin/python3", "VIRTUAL_ENV", false, true},
                                      {conda + "/bin/python3", "CONDA_PREFIX", true, true}}));
  EXPECT_EQ(pythons({{"PATH", system + "/bin"}, {"VIRTUAL_ENV", "/nowhere"}}),
            (std::vector<PythonPlace>{{system + "/bin/python3", "PATH", true}}));
  std::ofstream(folder_ / "project/pyvenv.cfg")
      << "home = " << system << "/bin\ninclude-system-site-packages = true\n";
  EXPECT_TRUE(pythons({{"PATH", path}}).at(0).has_torch) << "it uses the packages of another";
  std::ofstream(folder_ / "project/pyvenv.cfg")
      << "home = " << system << "/bin\ninclude-system-site-packages = false\n";
  EXPECT_FALSE(pythons({{"PATH", path}}).at(0).has_torch);
  std::ofstream(folder_ / "project/uv-receipt.toml") << "";
  EXPECT_TRUE(pythons({{"PATH", path}}).at(0).is_of_a_tool);
}

TEST(RealHostFacts, CountProcessors) {
  EXPECT_EQ(real_host_facts(environment({})).cpu_count(), static_cast<int>(allowed_cpus().size()));
}

TEST(RealHostFacts, SeeNoGpuThatTheUserHides) {
  const HostFacts facts =
      real_host_facts(environment({{"CUDA_VISIBLE_DEVICES", ""}, {"HIP_VISIBLE_DEVICES", ""}}));
  for (const AcceleratorCount& one : facts.accelerators())
    EXPECT_TRUE(one.visible == 0 || one.kind > AcceleratorKind::kAmd) << plural_of(one.kind);
}

TEST(RealHostFacts, MakeDifferentUuids) {
  const HostFacts facts = real_host_facts(environment({}));
  const std::string id = facts.make_run_id();
  ASSERT_EQ(id.size(), 36U);
  EXPECT_EQ(id[14], '4');
  EXPECT_NE(std::string("89ab").find(id[19]), std::string::npos);
  for (std::size_t i = 0; i < id.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    EXPECT_TRUE(dash ? id[i] == '-' : std::isxdigit(static_cast<unsigned char>(id[i])) != 0) << id;
  }
  EXPECT_NE(facts.make_run_id(), id);
}

}  // namespace
}  // namespace ddprun::launcher
