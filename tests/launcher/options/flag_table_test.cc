#include "launcher/options/flag_table.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace ddprun::launcher {
namespace {

TEST(FlagTable, HoldsEveryFlagOfTorchrunOnce) {
  // torchrun 2.11's --help, then what 2.15 added; then ours.
  const std::set<std::string> wanted = {"nnodes",
                                        "nproc-per-node",
                                        "rdzv-backend",
                                        "rdzv-endpoint",
                                        "rdzv-id",
                                        "rdzv-conf",
                                        "standalone",
                                        "max-restarts",
                                        "monitor-interval",
                                        "start-method",
                                        "event-log-handler",
                                        "role",
                                        "module",
                                        "no-python",
                                        "run-path",
                                        "log-dir",
                                        "redirects",
                                        "tee",
                                        "local-ranks-filter",
                                        "duplicate-stdout-filters",
                                        "duplicate-stderr-filters",
                                        "node-rank",
                                        "master-addr",
                                        "master-port",
                                        "local-addr",
                                        "logs-specs",
                                        "numa-binding",
                                        "signals-to-handle",
                                        "virtual-local-rank",
                                        "shutdown-timeout",
                                        "log-line-prefix-template",
                                        "print-completion",
                                        "help"};
  const std::set<std::string> own = {"error-report",
                                     "exit-codes",
                                     "signal-map",
                                     "restart-window",
                                     "restart-backoff",
                                     "fold",
                                     "node-unit",
                                     "standby",
                                     "python-hook",
                                     "quiet",
                                     "local-rank",
                                     "use-env",
                                     "version",
                                     "http",
                                     "check",
                                     "teardown-timeout",
                                     "share-imports",
                                     "on-hang",
                                     "check-replicas",
                                     "max-restarts-without-progress",
                                     "progress",
                                     "exit-map",
                                     "exit-ends-job",
                                     "exit-restarts",
                                     "device-timeout",
                                     "preempt-signal",
                                     "preempt-file",
                                     "preempt-deadline",
                                     "exit-preempted",
                                     "strikes",
                                     "strike-half-life",
                                     "strike-file",
                                     "exit-excludes-node"};
  std::set<std::string> torchruns;
  std::set<std::string> ours;
  for (const Flag& flag : flag_table()) {
    auto& names = flag.owner == FlagOwner::kTorchrun ? torchruns : ours;
    EXPECT_TRUE(names.emplace(flag.name).second) << flag.name;
    EXPECT_EQ(&flag_of(flag.id), &flag) << "two flags share one id: " << flag.name;
  }
  EXPECT_EQ(torchruns, wanted);
  EXPECT_EQ(ours, own);
}

TEST(FlagTable, MakesVariableNamesAsTorchrun) {
  EXPECT_EQ(pet_variable(flag_of(FlagId::kNprocPerNode)), "PET_NPROC_PER_NODE");
  EXPECT_EQ(pet_variable(flag_of(FlagId::kTee)), "PET_TEE");
}

TEST(FlagTable, HasNoVariableWhereTorchrunHasNone) {
  std::set<std::string> without;
  for (const Flag& flag : flag_table()) {
    if (!flag.from_environment) without.emplace(flag.name);
  }
  EXPECT_EQ(without, (std::set<std::string>{"logs-specs", "numa-binding", "print-completion",
                                            "help", "version"}));
}

}  // namespace
}  // namespace ddprun::launcher
