// The link `torchrun`, in a folder of its own.
#include "launcher/shims/shims.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_folder.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;
using Steps = std::vector<ShimStep>;
using Lines = std::vector<std::string>;

TEST(PlanShims, ChangesWhatIsNotAsItShouldBe) {
  struct Case {
    Torchrun torchrun;
    bool is_kept;
    Steps on;
    Steps off;
  };
  const std::vector<Case> cases = {
      {Torchrun::kNone, false, {ShimStep::kLink}, {}},
      {Torchrun::kNone, true, {ShimStep::kLink}, {ShimStep::kRestore}},
      {Torchrun::kOurs, false, {}, {ShimStep::kRemove}},
      {Torchrun::kOurs, true, {}, {ShimStep::kRestore}},
      {Torchrun::kOther, false, {ShimStep::kKeep, ShimStep::kLink}, {}},
      {Torchrun::kOther, true, {ShimStep::kKeep, ShimStep::kLink}, {ShimStep::kForget}},
  };
  for (const Case& one : cases) {
    const ShimFacts facts{"/bin", one.torchrun, one.is_kept};
    EXPECT_EQ(plan_shims(true, facts), one.on);
    EXPECT_EQ(plan_shims(false, facts), one.off);
  }
}

TEST(ShimsCall, TakesTwoWordsAlone) {
  EXPECT_FALSE(shims_call({}).has_value());
  EXPECT_FALSE(shims_call({"train.py", "shims"}).has_value());
  EXPECT_TRUE(shims_call({"shims", "on"})->value());
  EXPECT_FALSE(shims_call({"shims", "off"})->value());
  for (const Lines& words : {Lines{"shims"}, {"shims", "x"}, {"shims", "on", "off"}})
    EXPECT_EQ(shims_call(words)->error().message(), "shims: expected `on` or `off` behind it");
}

class Shims : public FolderTest {
 protected:
  void write(const char* name, const char* text) const { std::ofstream(folder / name) << text; }

  std::string read(const char* name) const {
    std::ifstream file(folder / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  void change(bool on) const {
    const auto changed = change_shims(on, look_at_shims(folder));
    EXPECT_TRUE(changed) << (changed ? "" : changed.error().message());
  }

  Torchrun torchrun() const { return look_at_shims(folder).torchrun; }
};

TEST_F(Shims, KeepTorchsAndGiveItBack) {
  write("torchrun", "torch's");
  change(true);
  EXPECT_EQ(fs::read_symlink(folder / "torchrun"), "ddprun");
  EXPECT_EQ(read("torchrun.torch"), "torch's");
  change(true);
  EXPECT_EQ(read("torchrun.torch"), "torch's") << "a second time changes nothing";
  change(false);
  EXPECT_EQ(read("torchrun"), "torch's");
  EXPECT_FALSE(fs::exists(folder / "torchrun.torch"));
}

TEST_F(Shims, ComeAndGoWhereNoTorchIs) {
  change(true);
  EXPECT_EQ(torchrun(), Torchrun::kOurs);
  change(false);
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(Shims, KeepTheNewerOneThatAnInstallerPutBack) {
  write("torchrun", "2.11");
  change(true);
  fs::remove(folder / "torchrun");
  write("torchrun", "2.15");
  EXPECT_EQ(torchrun(), Torchrun::kOther);
  change(true);
  EXPECT_EQ(read("torchrun.torch"), "2.15");
  fs::remove(folder / "torchrun");
  write("torchrun", "2.16");
  change(false);
  EXPECT_EQ(read("torchrun"), "2.16");
  EXPECT_FALSE(fs::exists(folder / "torchrun.torch"));
}

TEST_F(Shims, ChangeNothingInAFolderThatIsNotThere) {
  const auto changed = change_shims(true, look_at_shims(folder / "none"));
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().message(),
            (folder / "none/torchrun").string() + ": No such file or directory");
}

TEST_F(Shims, SayWhatIsThere) {
  EXPECT_EQ(told_of_shims(true, {"/v/bin", Torchrun::kNone, false}, "/v/bin/torchrun"),
            Lines{"/v/bin/torchrun is ddprun; `ddprun shims off` undoes it"});
  EXPECT_EQ(told_of_shims(true, {"/v/bin", Torchrun::kOther, false}, "/usr/bin/torchrun"),
            (Lines{"/v/bin/torchrun is ddprun; torch's is torchrun.torch; `ddprun shims off` "
                   "undoes it",
                   "PATH leads to /usr/bin/torchrun first: type `export PATH=/v/bin:$PATH` where "
                   "torchrun is called"}));
  EXPECT_EQ(told_of_shims(false, {"/v/bin", Torchrun::kOurs, true}, ""),
            Lines{"/v/bin/torchrun is torch's"});
  EXPECT_EQ(told_of_shims(false, {"/v/bin", Torchrun::kOurs, false}, ""),
            Lines{"no torchrun is in /v/bin"});
}

}  // namespace
}  // namespace ddprun::launcher
