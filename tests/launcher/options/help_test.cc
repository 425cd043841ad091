#include "launcher/options/help.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace ddprun::launcher {
namespace {

using Words = std::vector<std::string>;

TEST(Help, ShowsEveryFlagWithAWordOnIt) {
  const std::string help = help_text();
  for (const Flag& flag : flag_table()) {
    EXPECT_NE(help.find("--" + std::string(flag.name)), std::string::npos) << flag.name;
    EXPECT_FALSE(flag.help.empty()) << flag.name;
  }
  EXPECT_NE(help.find("\n  -t, --tee=SPEC "), std::string::npos);
}

TEST(Help, KeepsOurOwnApart) {
  const std::string help = help_text();
  const auto own = help.find("ddprun's own");
  ASSERT_NE(own, std::string::npos);
  EXPECT_GT(help.find("--error-report"), own);
  EXPECT_LT(help.find("--numa-binding"), own);
}

TEST(Help, FitsAScreen) {
  std::istringstream lines(help_text());
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110U) << line;
}

TEST(ValueWords, AreThoseToBeTypedAsTheyAre) {
  EXPECT_EQ(value_words(flag_of(FlagId::kNprocPerNode)),
            (Words{"cpu", "gpu", "auto", "xpu", "npu", "hpu"}));
  EXPECT_EQ(value_words(flag_of(FlagId::kNumaBinding)),
            (Words{"node", "socket", "exclusive", "core-complex"}));
  EXPECT_EQ(value_words(flag_of(FlagId::kRdzvBackend)), (Words{"static", "c10d", "etcd"}));
  for (const FlagId id : {FlagId::kRole, FlagId::kSignalMap, FlagId::kFold, FlagId::kLogDir})
    EXPECT_EQ(value_words(flag_of(id)), Words{});
}

TEST(CompletionScript, NamesEveryFlag) {
  for (const auto* shell : {"bash", "zsh", "tcsh", "fish"}) {
    const std::string script = completion_script(shell);
    for (const Flag& flag : flag_table())
      EXPECT_NE(script.find(flag.name), std::string::npos) << shell << " " << flag.name;
  }
  EXPECT_EQ(completion_script("csh"), "");
}

}  // namespace
}  // namespace ddprun::launcher
