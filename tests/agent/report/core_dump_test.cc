// The place of a worker's core dump.
#include "agent/report/core_dump.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

CorePlace place(std::string_view pattern, bool uses_pid = false) {
  return core_place(pattern, uses_pid, 42, 11, "/work");
}

TEST(CoreDump, APlainNameIsInTheWorkersFolder) {
  EXPECT_EQ(place("core"), (CorePlace{.shown = "/work/core", .glob = "/work/core"}));
  EXPECT_EQ(place("core", true).glob, "/work/core.42");
  EXPECT_EQ(core_place("core", false, 42, 11, "").shown, "core");
}

TEST(CoreDump, PutsInWhatIsKnown) {
  EXPECT_EQ(place("/cores/%p.%s").glob, "/cores/42.11");
  EXPECT_EQ(place("/cores/%p.%s", true).glob, "/cores/42.11");  // the pid is there already
  EXPECT_EQ(place("core%%%p").shown, "/work/core%42");
}

TEST(CoreDump, LeavesAPlaceForWhatIsNot) {
  const CorePlace found = place("/cores/%e-%t/%h.%u.core", true);
  EXPECT_EQ(found.shown, "/cores/%e-%t/%h.%u.core.42");
  EXPECT_EQ(found.glob, "/cores/*-*/*.*.core.42");
}

TEST(CoreDump, LeavesOutWhatTheKernelDoesNotKnowEither) {
  EXPECT_EQ(place("core%z.%p").glob, "/work/core.42");
  EXPECT_EQ(place("core%").glob, "/work/core");
}

TEST(CoreDump, ANameWithWildcardsNamesItselfAlone) {
  EXPECT_EQ(core_place("co*re[1]?", false, 42, 11, "/a\\b").glob, "/a\\\\b/co\\*re\\[1]\\?");
}

TEST(CoreDump, NamesTheProgramThatGetsIt) {
  EXPECT_EQ(place("|/usr/lib/systemd/systemd-coredump %P %u"),
            (CorePlace{.program = "/usr/lib/systemd/systemd-coredump"}));
  EXPECT_EQ(place("| /usr/share/apport/apport -p%p", true).program, "/usr/share/apport/apport");
  EXPECT_EQ(place("@/run/cores.socket").program, "@/run/cores.socket");
}

TEST(CoreDump, NothingBreaksAnEmptyPattern) {
  EXPECT_EQ(place("").shown, "/work/");
  EXPECT_EQ(place("|").program, "");
  EXPECT_EQ(place("", true).glob, "/work/.42");
}

}  // namespace
}  // namespace ddprun::agent
