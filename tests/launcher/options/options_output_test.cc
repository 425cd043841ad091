// Output, signals, restarts, devices and the other flags beyond a job's shape.
#include <gtest/gtest.h>

#include <csignal>

#include "launcher/options/options.h"
#include "tests/launcher/parse_support.h"

namespace ddprun::launcher {
namespace {

using Words = std::vector<std::string>;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(OptionsOutput, FiltersLocalRanks) {
  EXPECT_EQ(good({"--local-ranks-filter=0,2", "E"}).shown_ranks, (std::set<int>{0, 2}));
  EXPECT_EQ(good({"E"}).shown_ranks, std::nullopt);
  EXPECT_EQ(good({"--local-ranks-filter=", "E"}).shown_ranks, std::nullopt);
  EXPECT_EQ(bad({"--local-ranks-filter=a", "E"}),
            "1 ddprun: --local-ranks-filter=a: expected local ranks, such as 0,2");
}

TEST(OptionsOutput, DuplicatesByText) {
  const Options options =
      good({"--duplicate-stdout-filters=a,b", "E"}, {{"PET_DUPLICATE_STDERR_FILTERS", "x,,y"}});
  EXPECT_EQ(options.output.stdout_filters, (Words{"a", "b"}));
  EXPECT_EQ(options.output.stderr_filters, (Words{"x,y"}));
  EXPECT_EQ(good({"E"}).output.stdout_filters, std::nullopt);
  EXPECT_EQ(good({"--duplicate-stdout-filters=", "E"}).output.stdout_filters, Words{""});
  EXPECT_EQ(bad({"--duplicate-stderr-filters=a", "--log-dir=/dev/null", "E"}),
            "1 ddprun: --duplicate-stderr-filters=a: expected a log folder for the filtered file, "
            "not --log-dir=/dev/null");
}

TEST(OptionsOutput, TakesThePrefixFromTheNearestSource) {
  constexpr const char* variable = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";
  EXPECT_EQ(good({"E"}).output.prefix_template, "[${role_name}${local_rank}]:");
  EXPECT_EQ(good({"E"}, {{variable, "<${rank}> "}}).output.prefix_template, "<${rank}> ");
  const Variables both = {{variable, "a"}, {"PET_LOG_LINE_PREFIX_TEMPLATE", "b"}};
  EXPECT_EQ(good({"E"}, both).output.prefix_template, "b");
  EXPECT_EQ(good({"--log-line-prefix-template=c", "E"}, both).output.prefix_template, "c");
  EXPECT_EQ(good({"E"}, {{variable, ""}}).output.prefix_template, "");
}

TEST(OptionsOutput, RefusesLogPlugins) {
  const std::string line = bad({"--logs-specs=mine", "E"});
  EXPECT_TRUE(line.starts_with("1 ddprun: --logs-specs=mine: plugins are Python")) << line;
  EXPECT_EQ(good({"--logs-specs=default", "E"}).warnings, std::vector<std::string>{});
}

TEST(OptionsOutput, KnowsTwoEventHandlers) {
  EXPECT_FALSE(good({"--event-log-handler=null", "E"}).console_events);
  EXPECT_TRUE(good({"E"}, {{"PET_EVENT_LOG_HANDLER", "console"}}).console_events);
  EXPECT_EQ(bad({"--event-log-handler=x", "E"}),
            "1 ddprun: --event-log-handler=x: expected null or console");
}

TEST(OptionsOutput, TakesOurOwn) {
  const Options options = good({"--fold", "--quiet", "--error-report=r.json", "E"});
  EXPECT_TRUE(options.output.fold);
  EXPECT_TRUE(options.quiet);
  EXPECT_EQ(options.error_report, "r.json");
  const Options none = good({"E"});
  EXPECT_FALSE(none.output.fold || none.quiet || none.console_events);
  EXPECT_EQ(none.error_report + none.error_file, "");
  EXPECT_EQ(good({"E"}, {{"TORCHELASTIC_ERROR_FILE", "/x"}}).error_file, "/x");
}

TEST(OptionsOutput, TakesWhereToServeHttp) {
  EXPECT_EQ(good({"E"}).http, std::nullopt);
  EXPECT_EQ(good({"--http=", "E"}).http, std::nullopt);
  EXPECT_EQ(good({"--http=:9400", "E"}).http, (agent::HttpPlan{"", 9400}));
  EXPECT_EQ(good({"E"}, {{"PET_HTTP", "10.0.0.1:0"}}).http, (agent::HttpPlan{"10.0.0.1", 0}));
  EXPECT_EQ(bad({"--http=:29400", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=n1", "E"}),
            "1 ddprun: --http=:29400: expected another port than that of the rendezvous");
  EXPECT_EQ(bad({"--http=n1:9400", "E"}),
            "1 ddprun: --http=n1:9400: expected PORT, :PORT, ADDRESS:PORT or [V6]:PORT with a "
            "numeric address and a port up to 65535");
}

TEST(OptionsOutput, AnswersCompletionScripts) {
  for (const auto* shell : {"bash", "zsh", "tcsh", "fish"}) {
    const ParseResult parsed = parse_line({"--print-completion", shell});
    EXPECT_NE(std::get<Answer>(parsed).text.find("--numa-binding"), std::string::npos) << shell;
  }
  EXPECT_EQ(bad({"--print-completion=csh"}),
            "2 ddprun: --print-completion=csh: expected bash, zsh, tcsh or fish");
}

TEST(OptionsOutput, TakesWhoMayUseTheStore) {
  EXPECT_FALSE(good({"E"}).watch.any_store_user);
  EXPECT_FALSE(good({"E"}, {{"DDPRUN_STORE_USERS", "job"}}).watch.any_store_user);
  EXPECT_TRUE(good({"E"}, {{"DDPRUN_STORE_USERS", "any"}}).watch.any_store_user);
  const Options odd = good({"E"}, {{"DDPRUN_STORE_USERS", "all"}});
  EXPECT_FALSE(odd.watch.any_store_user);
  EXPECT_EQ(odd.warnings.size(), 1U);
}

TEST(OptionsOutput, TurnsTheWatchdogOnBy1Only) {
  EXPECT_EQ(good({"E"}).watch.timer_file, std::nullopt);
  EXPECT_EQ(good({"E"}, {{"TORCHELASTIC_ENABLE_FILE_TIMER", "0"}}).watch.timer_file, std::nullopt);
  EXPECT_EQ(good({"E"}, {{"TORCHELASTIC_TIMER_FILE", "/x"}}).watch.timer_file, std::nullopt);
  EXPECT_EQ(good({"E"}, {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}}).watch.timer_file, "");
  EXPECT_EQ(
      good({"E"}, {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}, {"TORCHELASTIC_TIMER_FILE", "/x"}})
          .watch.timer_file,
      "/x");
}

TEST(OptionsLifecycle, HandleTorchrunsSignalsByDefault) {
  const agent::SignalPlan plan = good({"E"}).signals;
  EXPECT_EQ(plan.stop, (std::vector<int>{SIGTERM, SIGINT, SIGHUP, SIGQUIT}));
  EXPECT_EQ(plan.stop_names, "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
  EXPECT_TRUE(plan.map.empty());
}

// Acceptance case 35 of the torchrun contract, the flag's half.
TEST(OptionsLifecycle, Case35HandleTheSignalsNamed) {
  const Options options = good({"--signals-to-handle=SIGTERM, SIGUSR1", "E"});
  EXPECT_EQ(options.signals.stop, (std::vector<int>{SIGTERM, SIGUSR1}));
  EXPECT_EQ(options.signals.stop_names, "SIGTERM, SIGUSR1");
  EXPECT_TRUE(options.warnings.empty());
}

TEST(OptionsLifecycle, OnlyWarnOfNamesThatAreNoSignals) {
  const Options options = good({"--signals-to-handle=SIGTERM,SIGNOPE,SIGKILL", "E"});
  EXPECT_EQ(options.signals.stop, (std::vector<int>{SIGTERM}));
  const std::string what = "--signals-to-handle=SIGTERM,SIGNOPE,SIGKILL: ";
  EXPECT_EQ(options.warnings, (Words{what + "SIGNOPE is no signal that can be handled",
                                     what + "SIGKILL is no signal that can be handled"}));
}

TEST(OptionsLifecycle, MapSignals) {
  EXPECT_EQ(good({"--signal-map=USR1=TERM,SIGUSR2=SIGINT", "E"}).signals.map,
            (std::map<int, int>{{SIGUSR1, SIGTERM}, {SIGUSR2, SIGINT}}));
  EXPECT_EQ(good({"E"}, {{"PET_SIGNAL_MAP", "HUP=TERM"}}).signals.map.at(SIGHUP), SIGTERM);
  EXPECT_EQ(bad({"--signal-map=USR1", "E"}),
            "1 ddprun: --signal-map=USR1: expected pairs of signals, such as USR1=TERM,USR2=INT");
  EXPECT_EQ(bad({"--signal-map=KILL=TERM", "E"}),
            "1 ddprun: --signal-map=KILL=TERM: expected a signal before the = that can be handled, "
            "which SIGKILL cannot");
}

TEST(OptionsLifecycle, ChooseExitCodes) {
  EXPECT_FALSE(good({"--exit-codes=torchrun", "E"}).detailed_exit_codes);
  EXPECT_TRUE(good({"--exit-codes=detailed", "E"}).detailed_exit_codes);
  EXPECT_EQ(bad({"--exit-codes=mine", "E"}),
            "2 ddprun: --exit-codes=mine: expected torchrun or detailed");
}

TEST(OptionsLifecycle, ChooseStandbys) {
  using agent::StandbyMode;
  EXPECT_EQ(good({"E"}).standby, StandbyMode::kAuto);
  EXPECT_EQ(good({"--standby=0", "E"}).standby, StandbyMode::kOff);
  EXPECT_EQ(good({"--standby=1", "E"}).standby, StandbyMode::kOn);
  EXPECT_TRUE(good({"E"}).python_hook);
  EXPECT_FALSE(good({"--python-hook=0", "E"}).python_hook);
  EXPECT_EQ(bad({"--standby=2", "E"}), "2 ddprun: --standby=2: expected auto, 0 or 1");
  using agent::SharedImports;
  EXPECT_EQ(good({"E"}).share_imports, SharedImports::kAuto);
  EXPECT_EQ(good({"--share-imports=0", "E"}).share_imports, SharedImports::kOff);
  EXPECT_EQ(good({"--share-imports=1", "E"}).share_imports, SharedImports::kOn);
  EXPECT_EQ(bad({"--share-imports=on", "E"}),
            "2 ddprun: --share-imports=on: expected auto, 0 or 1");
  EXPECT_EQ(bad({"--python-hook=no", "E"}), "2 ddprun: --python-hook=no: expected 0 or 1");
}

TEST(OptionsLifecycle, RestartsHaveNoWindowByDefault) {
  const agent::RestartPlan plan = good({"--max-restarts=3", "E"}).restarts;
  EXPECT_EQ(plan.max_restarts, 3);
  EXPECT_EQ(plan.window, milliseconds(0));
  EXPECT_EQ(plan.backoff, milliseconds(0));
  EXPECT_EQ(plan.backoff_max, milliseconds(0));
}

TEST(OptionsLifecycle, EndAJobWithoutProgress) {
  EXPECT_EQ(good({"E"}).restarts.most_without_progress, 3);
  EXPECT_FALSE(good({"E"}).restarts.counts_from_the_first);
  const Words line = {"--max-restarts=9", "--max-restarts-without-progress=5", "--progress=F", "E"};
  EXPECT_EQ(good(line).restarts.most_without_progress, 5);
  EXPECT_TRUE(good(line).restarts.counts_from_the_first);
  EXPECT_EQ(good(line).restarts.progress_file, "F");
  EXPECT_EQ(bad({"--max-restarts-without-progress=-1", "E"}),
            "1 ddprun: --max-restarts-without-progress=-1: expected a whole number of attempts; 0: "
            "off");
  EXPECT_EQ(good({"--progress=F", "E"}).warnings,
            (Words{"--progress=F has no effect without --max-restarts"}));
}

TEST(OptionsLifecycle, MapExitCodes) {
  EXPECT_TRUE(good({"E"}).exits.map.empty());
  EXPECT_EQ(good({"E"}).device_timeout, seconds(30));
  EXPECT_FALSE(good({"E"}).device_timeout_ends_job);
  const Words line = {"--exit-map=ValueError:42,node:76", "--exit-ends-job=3,4",
                      "--exit-restarts=0", "--device-timeout=2.5", "E"};
  EXPECT_EQ(good(line).exits,
            (agent::ExitPlan{
                .map = {{"ValueError", 42}, {"node", 76}}, .ends_job = {3, 4}, .restarts = {0}}));
  EXPECT_EQ(good(line).device_timeout, milliseconds(2500));
  EXPECT_TRUE(good(line).device_timeout_ends_job);
  EXPECT_EQ(bad({"--exit-map=node", "E"}),
            "1 ddprun: --exit-map=node: expected KEY:CODE,…, or a file that can be read");
  EXPECT_EQ(bad({"--exit-map=node:300", "E"}).substr(0, 60),
            "1 ddprun: --exit-map=node:300: 'node:300': expected KEY:CODE");
  EXPECT_EQ(bad({"--exit-ends-job=x", "E"}),
            "1 ddprun: --exit-ends-job=x: expected exit codes from 0 to 255, such as 3,4");
  EXPECT_EQ(bad({"--exit-ends-job=3,0", "E"}),
            "1 ddprun: --exit-ends-job=3,0: expected exit codes from 1 to 255: with 0 a job ends "
            "when all workers have");
  EXPECT_EQ(
      bad({"--exit-ends-job=3", "--exit-restarts=4,3", "E"}),
      "1 ddprun: --exit-restarts=4,3: expected codes that --exit-ends-job does not have, as 3");
}

TEST(OptionsLifecycle, SayWhenANodeSitsOut) {
  const agent::RestartPlan usual = good({"E"}).restarts;
  EXPECT_EQ(usual.strikes.most, 0);
  EXPECT_EQ(usual.strikes.half_life, std::chrono::hours(1));
  EXPECT_EQ(good({"--exit-excludes-node=9,10", "E"}).exits.excludes_node,
            (std::vector<int>{9, 10}));
  EXPECT_EQ(good({"--strikes=2", "E"}).restarts.strikes.most, 2);
  EXPECT_EQ(bad({"--strikes=17", "E"}),
            "1 ddprun: --strikes=17: expected a whole number from 1 to 16; 0: off");
  EXPECT_EQ(bad({"--strike-half-life=0", "E"}),
            "1 ddprun: --strike-half-life=0: expected more than 0 seconds");
}

TEST(OptionsLifecycle, AWindowBringsABackoff) {
  const agent::RestartPlan plan = good({"--max-restarts=3", "--restart-window=0.5", "E"}).restarts;
  EXPECT_EQ(plan.window, milliseconds(500));
  EXPECT_EQ(plan.backoff, seconds(1));
  EXPECT_EQ(plan.backoff_max, seconds(60));
  const Words line = {"--max-restarts=3", "--restart-window=9", "--restart-backoff=0.1:2", "E"};
  EXPECT_EQ(good(line).restarts.backoff, milliseconds(100));
  EXPECT_EQ(good(line).restarts.backoff_max, seconds(2));
}

TEST(OptionsLifecycle, ChooseWhatFollowsAHang) {
  using agent::OnHang;
  EXPECT_EQ(good({"E"}).on_hang, OnHang::kReport);
  EXPECT_EQ(good({"--on-hang=report", "E"}).on_hang, OnHang::kReport);
  EXPECT_EQ(good({"--on-hang=restart", "E"}).on_hang, OnHang::kRestart);
  EXPECT_EQ(good({"--on-hang=end", "E"}).on_hang, OnHang::kEnd);
  EXPECT_EQ(good({"--on-hang=off", "E"}).on_hang, OnHang::kOff);
  EXPECT_EQ(bad({"--on-hang=kill", "E"}),
            "2 ddprun: --on-hang=kill: expected report, restart, end or off");
}

TEST(OptionsLifecycle, CompareReplicas) {
  EXPECT_EQ(good({"E"}).check_replicas, 0);
  EXPECT_EQ(good({"--check-replicas=100", "E"}).check_replicas, 100);
  EXPECT_EQ(bad({"--check-replicas=-1", "E"}),
            "1 ddprun: --check-replicas=-1: expected a whole number of optimizer steps; 0: off");
  EXPECT_EQ(bad({"--check-replicas=often", "E"}),
            "2 ddprun: --check-replicas=often: expected a whole number of optimizer steps; 0: off");
}

TEST(OptionsLifecycle, ChooseWhatGivesNotice) {
  EXPECT_TRUE(good({"E"}).signals.notice.empty());
  EXPECT_EQ(good({"E"}).exit_preempted, std::nullopt);
  const auto options = good({"--preempt-signal=SIGTERM, USR1", "--preempt-file=/n",
                             "--preempt-deadline=1.5", "--exit-preempted=85", "E"});
  EXPECT_EQ(options.signals.notice, (std::vector<int>{SIGTERM, SIGUSR1}));
  EXPECT_EQ(options.preempt_file, "/n");
  EXPECT_EQ(options.preempt_deadline, milliseconds(1500));
  EXPECT_EQ(options.exit_preempted, 85);
  EXPECT_EQ(good({"--shutdown-timeout=7", "E"}).preempt_deadline, seconds(7));
  EXPECT_EQ(bad({"--preempt-signal=SIGTERM,SIGKILL", "E"}),
            "2 ddprun: --preempt-signal=SIGTERM,SIGKILL: SIGKILL is no signal that can be handled; "
            "expected names as in SIGTERM,SIGUSR1");
  EXPECT_EQ(bad({"--exit-preempted=300", "E"}),
            "2 ddprun: --exit-preempted=300: expected an exit code from 0 to 255");
}

TEST(OptionsLifecycle, BoundATeardown) {
  EXPECT_EQ(good({"E"}).teardown_timeout, seconds(15));
  EXPECT_EQ(good({"--teardown-timeout=0", "E"}).teardown_timeout, seconds(0));
  EXPECT_EQ(bad({"--teardown-timeout=x", "E"}),
            "1 ddprun: --teardown-timeout=x: expected seconds from 0, such as 0.5");
}

TEST(OptionsLifecycle, CheckWindowAndBackoff) {
  EXPECT_EQ(bad({"--restart-window=x", "E"}),
            "1 ddprun: --restart-window=x: expected seconds from 0, such as 0.5");
  EXPECT_EQ(bad({"--restart-backoff=2:1", "E"}).substr(0, 33), "1 ddprun: --restart-backoff=2:1: ");
  EXPECT_EQ(good({"--restart-window=9", "E"}).warnings,
            (Words{"--restart-window=9 has no effect without --max-restarts"}));
}

// Acceptance case 13.
TEST(OptionsProgram, Case13GivesEachWorkerOneDevice) {
  const Words line = {"--virtual-local-rank", "--nproc-per-node=2", "E"};
  EXPECT_EQ(good(line, {{"CUDA_VISIBLE_DEVICES", "7, 5,3"}}).virtual_devices, (Words{"7", "5"}));
  EXPECT_EQ(good(line).virtual_devices, (Words{"0", "1"}));
  EXPECT_EQ(
      bad(line, {{"CUDA_VISIBLE_DEVICES", "3"}}),
      "1 ddprun: --virtual-local-rank: CUDA_VISIBLE_DEVICES=3 has no device for local rank 1");
  EXPECT_EQ(
      good(line, {{"CUDA_VISIBLE_DEVICES", "7,5"}, {"HIP_VISIBLE_DEVICES", "1,0"}}).virtual_devices,
      (Words{"1", "0"}));
  EXPECT_TRUE(good({"--nproc-per-node=2", "E"}).virtual_devices.empty());
}

TEST(OptionsProgram, KnowsFourBindings) {
  EXPECT_EQ(good({"--numa-binding=core-complex", "E"}).numa_binding, NumaMode::kCoreComplex);
  EXPECT_EQ(good({"E"}, {{"PET_NUMA_BINDING", "node"}}).numa_binding, std::nullopt);
  EXPECT_EQ(bad({"--numa-binding=x", "E"}),
            "2 ddprun: --numa-binding=x: expected node, socket, exclusive or core-complex");
}

// Acceptance case 14.
TEST(OptionsProgram, Case14LegacyModeHandsTheLocalRankOn) {
  EXPECT_FALSE(good({"E"}).local_rank_argument);
  EXPECT_TRUE(good({"--local-rank", "E"}).local_rank_argument);
  EXPECT_FALSE(good({"--local-rank", "--use-env", "E"}).local_rank_argument);
  EXPECT_FALSE(good({"--use-env", "E"}).local_rank_argument);
}

TEST(OptionsProgram, Case14TheNameDdprunLaunchIsLegacyMode) {
  const FakeHost launch{.called = "ddprun-launch"};
  const Options options = good({"E"}, {}, launch);
  EXPECT_TRUE(options.local_rank_argument);
  ASSERT_EQ(options.warnings.size(), 1U);
  EXPECT_NE(options.warnings[0].find("LOCAL_RANK"), std::string::npos);
  EXPECT_FALSE(good({"--use_env", "E"}, {}, launch).local_rank_argument);
  EXPECT_EQ(bad({"--no-python", "E"}, {}, launch),
            "1 ddprun: --no-python: expected --use-env beside it: programs are given no "
            "--local-rank");
  EXPECT_TRUE(good({"--no-python", "--use-env", "E"}, {}, launch).mode == Mode::kProgram);
}

TEST(OptionsOutput, TakesTheTimeAWorkerMaySleepUninterruptibly) {
  const std::string name = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";
  using std::chrono::milliseconds;
  EXPECT_EQ(good({"E"}).watch.most_sleep, milliseconds(0));
  EXPECT_EQ(good({"E"}, {{name, "1.5"}}).watch.most_sleep, milliseconds(1500));
  EXPECT_EQ(good({"E"}, {{name, ""}}).warnings, Words{});
  EXPECT_EQ(good({"E"}, {{name, "soon"}}).watch.most_sleep, milliseconds(0));
  EXPECT_EQ(good({"E"}, {{name, "soon"}}).warnings,
            Words{name + "=soon has no effect: expected seconds from 0, such as 0.5"});
}

TEST(OptionsOutput, TakesTheHealthPort) {
  const std::string name = "TORCHELASTIC_HEALTH_CHECK_PORT";
  EXPECT_EQ(good({"E"}).watch.health_port, std::nullopt);
  EXPECT_EQ(good({"E"}, {{name, "8080"}}).watch.health_port, 8080);
  EXPECT_EQ(good({"E"}, {{name, "0"}}).watch.health_port, std::nullopt);
  EXPECT_EQ(good({"E"}, {{name, "65536"}}).watch.health_port, std::nullopt);
  EXPECT_EQ(good({"E"}, {{name, "http"}}).warnings,
            Words{name + "=http has no effect: expected a port from 1 to 65535"});
  const Words two_nodes = {"--nnodes=2", "--master-port=8080", "E"};
  EXPECT_EQ(good(two_nodes, {{name, "8080"}}).watch.health_port, std::nullopt);
  EXPECT_EQ(good(two_nodes, {{name, "8081"}}).watch.health_port, 8081);
}

}  // namespace
}  // namespace ddprun::launcher
