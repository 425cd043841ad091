#include "launcher/manual/manual_page.h"

#include <gtest/gtest.h>

#include "launcher/manual/roff.h"
#include "launcher/options/flag_table.h"

namespace ddprun::launcher {
namespace {

bool has(const std::string& page, const std::string& text) {
  return page.find(text) != std::string::npos;
}

TEST(ManualPage, HasEveryFlagWithAllThatTheTableSaysOfIt) {
  const std::string page = manual_page("1.2.3");
  for (const Flag& flag : flag_table()) {
    EXPECT_TRUE(has(page, "\\fB\\-\\-" + roff(flag.name) + "\\fR")) << flag.name;
    EXPECT_TRUE(has(page, "\n" + roff(flag.help) + "\n")) << flag.name;
    if (flag.letter != 0) {
      EXPECT_TRUE(has(page, std::string("\n\\fB\\-") + flag.letter + "\\fR, ")) << flag.name;
    }
    EXPECT_EQ(has(page, "Variable: " + pet_variable(flag) + "."), flag.from_environment)
        << flag.name;
  }
}

TEST(ManualPage, TellsWordsToTypeFromTexts) {
  const std::string page = manual_page("1.2.3");
  EXPECT_TRUE(has(page,
                  "\\-\\-nproc\\-per\\-node\\fR=\\fIN\\fR|\\fBcpu\\fR|\\fBgpu\\fR|\\fBauto\\fR|"
                  "\\fBxpu\\fR|\\fBnpu\\fR|\\fBhpu\\fR\n"));
  EXPECT_TRUE(has(page, "\\-\\-rdzv\\-conf\\fR=\\fIK=V,\\[u2026]\\fR\n"));
  EXPECT_TRUE(has(page, "Default: 30. Variable: PET_SHUTDOWN_TIMEOUT.\n"));
}

TEST(ManualPage, BeginsWithItsTitleAndName) {
  const std::string page = manual_page("1.2.3");
  EXPECT_TRUE(page.starts_with(".TH DDPRUN 1 \"\" \"ddprun 1.2.3\" \"User Commands\"\n.SH NAME\n"));
  // man, apropos and whatis take the names from this line.
  EXPECT_TRUE(has(page, "\nddprun, ddprun\\-launch \\- start, "));
}

TEST(ManualPage, NamesTheDoctorAndWhatWorkersFind) {
  const std::string page = manual_page("1.2.3");
  EXPECT_TRUE(has(page.substr(0, page.find(".SH DESCRIPTION")), "\n.B doctor\n"));
  EXPECT_TRUE(has(page.substr(0, page.find(".SH DESCRIPTION")), "\n.B ddprun shims on\n"));
  const std::string variables = page.substr(page.find(".SH ENVIRONMENT"));
  for (const char* name : {"OMP_NUM_THREADS", "DDPRUN_DEADLINE"})
    EXPECT_TRUE(has(variables, std::string("\\fB") + name + "\\fR")) << name;
}

TEST(ManualPage, NeedsNoMoreThanAscii) {
  for (const char c : manual_page("1.2.3")) EXPECT_GE(c, '\n');
}

}  // namespace
}  // namespace ddprun::launcher
