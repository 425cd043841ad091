#include "launcher/job/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "tests/launcher/parse_support.h"

namespace ddprun::launcher {
namespace {

using Words = std::vector<std::string>;

Plan plan_of(const Words& args, Words inherited = {}, const Variables& env = {}) {
  const Command command{.file = "/bin/x", .head = {"x"}, .args = {"$local_rank"}, .entry = "x"};
  return make_plan(good(args, env), command,
                   {.variables = std::move(inherited), .job_cookie = "c"});
}

bool holds(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

TEST(Plan, CarriesEveryFlagToTheAgent) {
  const agent::AgentConfig agent =
      plan_of({"--nproc-per-node=2",
               "--virtual-local-rank",
               "--exit-codes=detailed",
               "--quiet",
               "--event-log-handler=console",
               "--error-report=r",
               "--http=:9400",
               "--fold",
               "--role=trn",
               "--log-line-prefix-template=p",
               "--duplicate-stdout-filters=a",
               "--max-restarts=2",
               "--restart-window=5",
               "--max-restarts-without-progress=4",
               "--progress=P",
               "--exit-map=node:76",
               "--device-timeout=2",
               "--strikes=3",
               "--strike-half-life=60",
               "--strike-file=S",
               "--exit-excludes-node=9",
               "--signals-to-handle=SIGINT",
               "--signal-map=USR1=TERM",
               "--shutdown-timeout=7",
               "--teardown-timeout=2.5",
               "--on-hang=end",
               "--check-replicas=100",
               "--preempt-signal=SIGTERM,USR1",
               "--preempt-file=F",
               "--preempt-deadline=90",
               "--exit-preempted=85",
               "--log-dir=L",
               "E"},
              {}, {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}, {"TORCHELASTIC_ERROR_FILE", "e"}})
          .agent;
  EXPECT_EQ(agent.worker_count, 2);
  EXPECT_EQ(agent.virtual_devices, (Words{"0", "1"}));
  EXPECT_EQ(agent.device_variables, Words{"CUDA_VISIBLE_DEVICES"});
  EXPECT_TRUE(agent.detailed_exit_codes && agent.quiet && agent.console_events);
  EXPECT_EQ(agent.error_report, "r");
  EXPECT_EQ(agent.http, (agent::HttpPlan{"", 9400}));
  EXPECT_EQ(agent.error_file, "e");
  EXPECT_EQ(agent.watch.timer_file, "");
  EXPECT_TRUE(agent.output.fold);
  EXPECT_EQ(agent.output.prefix_template, "p");
  EXPECT_EQ(agent.output.stdout_filters, Words{"a"});
  EXPECT_EQ(agent.restarts.max_restarts, 2);
  EXPECT_EQ(agent.restarts.window.count(), 5000);
  EXPECT_EQ(agent.restarts.most_without_progress, 4);
  EXPECT_EQ(agent.restarts.progress_file, "P");
  EXPECT_EQ(agent.exits.map.at("node"), 76);
  EXPECT_EQ(agent.restarts.strikes.most, 3);
  EXPECT_EQ(agent.restarts.strikes.half_life, std::chrono::minutes(1));
  EXPECT_EQ(agent.restarts.strike_file, "S");
  EXPECT_EQ(agent.exits.excludes_node, std::vector<int>{9});
  EXPECT_EQ(agent.device_timeout, std::chrono::seconds(2));
  EXPECT_EQ(agent.restarts.backoff.count(), 1000);
  EXPECT_EQ(agent.signals.stop, std::vector<int>{SIGINT});
  EXPECT_EQ(agent.signals.map.at(SIGUSR1), SIGTERM);
  EXPECT_EQ(agent.grace, std::chrono::seconds(7));
  EXPECT_EQ(agent.teardown_timeout, std::chrono::milliseconds(2500));
  EXPECT_EQ(agent.on_hang, agent::OnHang::kEnd);
  EXPECT_EQ(agent.check_replicas, 100);
  EXPECT_EQ(agent.signals.notice, (std::vector<int>{SIGTERM, SIGUSR1}));
  EXPECT_EQ(agent.notice_deadline, std::chrono::seconds(90));
  EXPECT_EQ(agent.notice_file, "F");
  EXPECT_EQ(agent.exit_preempted, 85);
  EXPECT_EQ(agent.log_dir, "L");
  EXPECT_EQ(agent.role, "trn");
  EXPECT_EQ(agent.entry, "x");
  EXPECT_EQ(agent.job_cookie, "c");
}

TEST(Plan, OrdersGpusByPciAddressUnlessTheUserSaysHow) {
  const struct {
    bool needs_pci_order;
    Words inherited, expected;
  } cases[] = {{false, {}, {}},
               {true, {}, {"CUDA_DEVICE_ORDER=PCI_BUS_ID"}},
               {true, {"CUDA_DEVICE_ORDER=FASTEST_FIRST"}, {"CUDA_DEVICE_ORDER=FASTEST_FIRST"}},
               {true, {"CUDA_DEVICE_ORDER="}, {"CUDA_DEVICE_ORDER="}},
               {false, {"CUDA_DEVICE_ORDER=PCI_BUS_ID"}, {"CUDA_DEVICE_ORDER=PCI_BUS_ID"}}};
  for (const auto& [needs_pci_order, inherited, expected] : cases) {
    const Command command{
        .file = "/bin/x", .head = {"x"}, .entry = "x", .needs_pci_order = needs_pci_order};
    Words orders = make_plan(good({"E"}), command, {.variables = inherited}).agent.base_env;
    std::erase_if(
        orders, [](const std::string& entry) { return !entry.starts_with("CUDA_DEVICE_ORDER="); });
    EXPECT_EQ(orders, expected);
  }
}

TEST(Plan, CarriesHowRoundsAreFormed) {
  using std::chrono::seconds;
  const agent::AgentConfig agent =
      plan_of({"--nnodes=2:6", "--node-unit=2", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:1",
               "--rdzv-id=j",
               "--rdzv-conf=join_timeout=9,last_call_timeout=8,resize_wait=0,resize_interval=7",
               "E"})
          .agent;
  EXPECT_EQ(agent.rendezvous.settings, (rendezvous::RoundSettings{.join_timeout = seconds(9),
                                                                  .last_call = seconds(8),
                                                                  .resize_wait = seconds(0),
                                                                  .resize_interval = seconds(7),
                                                                  .node_unit = 2}));
}

TEST(Plan, ShowsOnlyTheRanksThatTheFilterNames) {
  const auto streams =
      plan_of({"--nproc-per-node=3", "-t", "0:1,2:3", "-r2", "--local-ranks-filter=2,9", "E"})
          .agent.streams;
  ASSERT_EQ(streams.size(), 3U);
  EXPECT_FALSE(streams[0].shown || streams[1].shown);
  EXPECT_TRUE(streams[2].shown);
  EXPECT_TRUE(streams[0].tee_stdout && !streams[0].tee_stderr && streams[0].redirect_stderr);
  EXPECT_TRUE(streams[2].tee_stdout && streams[2].tee_stderr && !streams[2].redirect_stdout);
  EXPECT_TRUE(plan_of({"E"}).agent.streams[0].shown);
}

TEST(Plan, BindsEachWorkersCommand) {
  Command command{.file = "/bin/x", .head = {"x"}, .args = {"$local_rank"}, .entry = "x"};
  command.numactl = "/usr/bin/numactl";
  command.cpus = {"0-3", "4-7"};
  const auto agent = make_plan(good({"--nproc-per-node=2", "E"}), command, {}).agent;
  EXPECT_EQ(agent.command(1).file, "/usr/bin/numactl");
  EXPECT_EQ(agent.command(1).argv, (Words{"numactl", "--physcpubind=4-7", "/bin/x", "1"}));
  EXPECT_EQ(plan_of({"E"}).agent.command(0).file, "/bin/x");
}

// Acceptance cases 2 and 3 of the torchrun contract, the launcher's half.
TEST(Plan, Cases2And3SetOmpNumThreadsForSeveralWorkers) {
  const Plan two = plan_of({"--nproc-per-node=2", "E"});
  EXPECT_TRUE(holds(two.agent.base_env, "OMP_NUM_THREADS=1"));
  EXPECT_EQ(two.notices.size(), 1U);
  const Plan set = plan_of({"--nproc-per-node=2", "E"}, {"OMP_NUM_THREADS=8"});
  EXPECT_EQ(std::count_if(set.agent.base_env.begin(), set.agent.base_env.end(),
                          [](const auto& entry) { return entry.starts_with("OMP_"); }),
            1);
  EXPECT_TRUE(set.notices.empty());
  EXPECT_TRUE(plan_of({"E"}).notices.empty());
}

// Under Slurm workers share the CPUs of their task.
TEST(Plan, SharesTheCpusThatSlurmGave) {
  const Command command{.file = "/bin/x", .head = {"x"}, .args = {}, .entry = "x"};
  for (const auto& [workers, threads] : {std::pair{"1", "8"}, {"2", "4"}, {"3", "2"}, {"9", "1"}}) {
    Options options = good({std::string("--nproc-per-node=") + workers, "E"});
    options.cpus_per_task = 8;
    const Plan plan = make_plan(options, command, {});
    EXPECT_TRUE(holds(plan.agent.base_env, std::string("OMP_NUM_THREADS=") + threads)) << workers;
    ASSERT_EQ(plan.notices.size(), 1U);
    EXPECT_TRUE(plan.notices[0].ends_with(" its part of SLURM_CPUS_PER_TASK=8"));
    const Plan given = make_plan(options, command, {.variables = {"OMP_NUM_THREADS=5"}});
    EXPECT_FALSE(holds(given.agent.base_env, std::string("OMP_NUM_THREADS=") + threads));
    EXPECT_TRUE(given.notices.empty());
  }
}

TEST(Plan, TellsWorkersWhenTheJobEnds) {
  const Command command{.file = "/bin/x", .head = {"x"}, .args = {}, .entry = "x"};
  Options options = good({"E"});
  options.ends_at = std::chrono::sys_seconds(std::chrono::seconds(1795560000));
  const Words env =
      make_plan(options, command, {.variables = {"DDPRUN_DEADLINE=1"}}).agent.base_env;
  EXPECT_TRUE(holds(env, "DDPRUN_DEADLINE=1795560000"));
  EXPECT_FALSE(holds(env, "DDPRUN_DEADLINE=1"));
  EXPECT_FALSE(holds(plan_of({"E"}).agent.base_env, "DDPRUN_DEADLINE=1795560000"));
}

TEST(Plan, IsSilentWhenAskedTo) {
  const Plan plan = plan_of({"--nproc-per-node=2", "--quiet", "E"});
  EXPECT_TRUE(plan.notices.empty());
  EXPECT_TRUE(holds(plan.agent.base_env, "OMP_NUM_THREADS=1"));
}

// Acceptance case 4.
TEST(Plan, Case4LeavesNcclsErrorHandlingToTheUser) {
  EXPECT_TRUE(holds(plan_of({"E"}).agent.base_env, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1"));
  const Words env = plan_of({"E"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING=3"}).agent.base_env;
  EXPECT_EQ(env, (Words{"TORCH_NCCL_ASYNC_ERROR_HANDLING=3"}));
}

// A host with them would start, and nobody could join it.
TEST(Plan, BoundsIdAndTokenOfSeveralNodes) {
  const auto said = [](const char* nodes, std::size_t id, std::size_t token) {
    const Options options = good({nodes, "--rdzv-id=" + std::string(id, 'i'), "E"});
    const auto got = job_token(options, environment({{"DDPRUN_TOKEN", std::string(token, 't')}}));
    return got ? std::to_string(got->size()) : got.error().message();
  };
  EXPECT_EQ(said("--nnodes=2", 255, 4096), "4096");
  EXPECT_EQ(said("--nnodes=2", 255, 4097), "DDPRUN_TOKEN: expected at most 4096 bytes, got 4097");
  EXPECT_EQ(said("--nnodes=2", 256, 1), "--rdzv-id: expected at most 255 bytes, got 256");
  EXPECT_EQ(said("--nnodes=1", 256, 4097), "4097");
}

TEST(Plan, HidesTheTokenFromWorkers) {
  const Words env = plan_of({"E"}, {"DDPRUN_TOKEN=s", "A=1"}).agent.base_env;
  EXPECT_TRUE(holds(env, "A=1"));
  EXPECT_FALSE(holds(env, "DDPRUN_TOKEN=s"));
}

TEST(Plan, HidesAnOuterJobsPageFromWorkers) {
  const Words env = plan_of({"E"}, {"DDPRUN_PAGE=0", "DDPRUN_HOOK=1:", "DDPRUN_PYTHONPATH=x",
                                    "DDPRUN_CHECK_REPLICAS=9", "A=1"})
                        .agent.base_env;
  EXPECT_TRUE(holds(env, "A=1"));
  for (const char* outer :
       {"DDPRUN_PAGE=0", "DDPRUN_HOOK=1:", "DDPRUN_PYTHONPATH=x", "DDPRUN_CHECK_REPLICAS=9"})
    EXPECT_FALSE(holds(env, outer)) << outer;
}

}  // namespace
}  // namespace ddprun::launcher
