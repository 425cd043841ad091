// The word on a silent kill, by which sources can be read.
#include "agent/report/evidence.h"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>

#include "tests/agent/temporary_folder.h"

namespace ddprun::agent {
namespace {

constexpr int kPid = 77;
constexpr const char* kNoLog = "/nonexistent/kmsg";
constexpr const char* kByAnother = "sent by another process; no record of the out-of-memory killer";

class KillEvidenceTest : public FolderTest {
 protected:
  KillEvidence evidence(const char* log) {
    return KillEvidence(KernelLog(log), [this] { return kills; });
  }
  std::optional<std::uint64_t> kills = 5;
};

TEST_F(KillEvidenceTest, ACountThatGrewInThisAttemptIsTheKiller) {
  KillEvidence found = evidence(kNoLog);
  EXPECT_EQ(found.of(kPid), kByAnother);
  kills = 6;
  EXPECT_EQ(found.of(kPid).find("out of memory"), 0U);
}

TEST_F(KillEvidenceTest, ACountThatGrewInAnEarlierAttemptIsNot) {
  KillEvidence found = evidence(kNoLog);
  kills = 6;
  found.attempt_started();
  EXPECT_EQ(found.of(kPid), kByAnother);
}

TEST_F(KillEvidenceTest, WhereNothingCanBeReadNobodyIsCleared) {
  kills.reset();
  EXPECT_EQ(evidence(kNoLog).of(kPid),
            "sent by another process, or by the out-of-memory killer: neither the kernel's log nor "
            "a cgroup counter can be read here");
  { std::ofstream(folder / "kmsg") << ""; }
  EXPECT_EQ(evidence((folder / "kmsg").c_str()).of(kPid), kByAnother) << "the log has no record";
}

TEST_F(KillEvidenceTest, TheKernelsLogNamesTheVictim) {
  { std::ofstream(folder / "kmsg") << "6,1,1,-;before the job\n"; }
  KillEvidence found = evidence((folder / "kmsg").c_str());
  std::ofstream(folder / "kmsg", std::ios::app)
      << "6,2,2,-;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task=x,pid=77,uid=0";
  EXPECT_EQ(found.of(kPid), "out of memory: the kernel killed it, the host had none left");
  EXPECT_EQ(found.of(kPid + 1), kByAnother);
}

}  // namespace
}  // namespace ddprun::agent
