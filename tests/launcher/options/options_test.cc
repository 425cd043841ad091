#include "launcher/options/options.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/launcher/parse_support.h"

namespace ddprun::launcher {
namespace {

using Words = std::vector<std::string>;

TEST(Options, HaveTorchrunsDefaults) {
  const Options options = good({"E"});
  EXPECT_EQ(options.nodes, (NodeCount{1, 1}));
  EXPECT_EQ(options.workers_per_node, 1);
  EXPECT_EQ(options.rendezvous,
            Rendezvous::kLocal);  // torchrun 2.15's: one node never takes a fixed port
  EXPECT_FALSE(options.standalone);
  EXPECT_EQ(options.run_id, "none");
  EXPECT_EQ(options.restarts.max_restarts, 0);
  EXPECT_EQ(options.monitor_interval.count(), 100);
  EXPECT_EQ(options.shutdown_timeout.count(), 30);
  EXPECT_EQ(options.role, "default");
  EXPECT_EQ(options.log_dir, std::nullopt);
  EXPECT_TRUE(options.redirects.none() && options.tees.none());
  EXPECT_EQ(options.mode, Mode::kScript);
  EXPECT_EQ(options.script, "E");
  EXPECT_TRUE(options.script_args.empty());
  EXPECT_EQ(options.log_level, log::Level::kWarning);
  EXPECT_TRUE(options.warnings.empty());
}

TEST(Options, AnswerHelpAndVersion) {
  EXPECT_TRUE(std::get<Answer>(parse_line({"--help"})).text.starts_with("usage: ddprun "));
  EXPECT_TRUE(std::get<Answer>(parse_line({"--version"})).text.starts_with("ddprun 0."));
}

// Acceptance case 9 of the torchrun contract: usage errors are 2.
TEST(Options, Case9UsageErrorsExitWith2) {
  EXPECT_EQ(bad({}),
            "2 ddprun: SCRIPT is missing: usage: ddprun [options] SCRIPT [script arguments…]; "
            "ddprun --help lists the options");
  EXPECT_EQ(bad({"--nope", "x"}), "2 ddprun: --nope: unknown option; ddprun --help lists them");
  EXPECT_EQ(bad({"--max-restarts=x", "E"}),
            "2 ddprun: --max-restarts=x: expected a whole number from 0");
  EXPECT_EQ(bad({"--start-method=q", "E"}),
            "2 ddprun: --start-method=q: expected spawn, fork or forkserver");
  EXPECT_EQ(bad({"--master-port=x", "E"}),
            "2 ddprun: --master-port=x: expected a port from 0 to 65535");
  EXPECT_EQ(bad({"--node-rank=x", "E"}), "2 ddprun: --node-rank=x: expected a whole number from 0");
  EXPECT_EQ(bad({"--shutdown-timeout=x", "E"}),
            "2 ddprun: --shutdown-timeout=x: expected whole seconds from 0");
  EXPECT_EQ(bad({"--monitor-interval=x", "E"}),
            "2 ddprun: --monitor-interval=x: expected seconds above 0");
  EXPECT_EQ(bad({"E"}, {{"PET_MAX_RESTARTS", "x"}}),
            "2 ddprun: PET_MAX_RESTARTS=x: expected a whole number from 0");
}

// Acceptance case 10: bad values are 1, each in one line that names the option.
TEST(Options, Case10BadValuesExitWith1) {
  const std::string nodes = ": expected N or MIN:MAX with 0 < MIN <= MAX <= 16384";
  EXPECT_EQ(bad({"--nnodes=2:1", "E"}), "1 ddprun: --nnodes=2:1" + nodes);
  EXPECT_EQ(bad({"--nnodes=0", "E"}), "1 ddprun: --nnodes=0" + nodes);
  EXPECT_EQ(bad({"--nnodes=1:2:3", "E"}), "1 ddprun: --nnodes=1:2:3" + nodes);
  EXPECT_EQ(bad({"E"}, {{"PET_NNODES", ""}}), "1 ddprun: PET_NNODES=" + nodes);
  EXPECT_EQ(bad({"--max-restarts=-1", "E"}),
            "1 ddprun: --max-restarts=-1: expected a whole number from 0");
  EXPECT_EQ(
      bad({"--nproc-per-node=bogus", "E"}),
      "1 ddprun: --nproc-per-node=bogus: expected a number above 0, cpu, gpu, auto, xpu, npu or "
      "hpu");
  EXPECT_EQ(bad({"--monitor-interval=0", "E"}),
            "1 ddprun: --monitor-interval=0: expected seconds above 0");
  EXPECT_EQ(bad({"-m", "--no-python", "E"}),
            "1 ddprun: --no-python: expected no --module beside it");
  EXPECT_EQ(
      bad({"--tee=4", "E"}),
      "1 ddprun: --tee=4: expected 0, 1, 2 or 3 (none, stdout, stderr, both), or RANK:DIGIT,…");
  EXPECT_EQ(bad({"--rdzv-conf=foo", "E"}),
            "1 ddprun: --rdzv-conf=foo: expected KEY=VALUE,KEY=VALUE");
  EXPECT_EQ(bad({"--rdzv-backend=foo", "E"}),
            "1 ddprun: --rdzv-backend=foo: expected static, c10d or etcd");
}

TEST(Options, MoreBadValuesExitWith1) {
  EXPECT_EQ(bad({"--master-port=65536", "E"}),
            "1 ddprun: --master-port=65536: expected a port from 0 to 65535");
  EXPECT_EQ(bad({"--shutdown-timeout=-1", "E"}),
            "1 ddprun: --shutdown-timeout=-1: expected whole seconds from 0");
  EXPECT_EQ(bad({"--run-path", "-m", "E"}), "1 ddprun: --run-path: expected no --module beside it");
  EXPECT_EQ(bad({"--redirects=", "E"}).substr(0, 23), "1 ddprun: --redirects=:");
  EXPECT_EQ(
      bad({"--rdzv-backend=c10d", "--rdzv-endpoint=n1", "--rdzv-conf=join_timeout=0", "E"}),
      "1 ddprun: --rdzv-conf=join_timeout=0: expected join_timeout to be a whole number above 0");
}

TEST(Options, ReportWhatArgparseFindsFirst) {
  EXPECT_EQ(bad({"--nnodes=0", "--max-restarts=x", "E"}).substr(0, 27),
            "2 ddprun: --max-restarts=x:");
  EXPECT_EQ(bad({"--nnodes=0"}).substr(0, 28), "2 ddprun: SCRIPT is missing:");
}

TEST(Options, WarnOfConfKeysThatTheBackendDoesNotNeed) {
  EXPECT_EQ(good({"--rdzv-conf=heartbeat_timeout=5,timeout=3,keep_alive_interval=2", "E"}).warnings,
            (Words{"--rdzv-conf: without effect with the static backend: heartbeat_timeout, "
                   "keep_alive_interval"}));
  const std::string all =
      "--rdzv-conf=join_timeout=1,read_timeout=1,is_host=1,last_call_timeout=1,timeout=1,"
      "keep_alive_interval=1,resize_wait=0,resize_interval=0,"
      "close_timeout=1,keep_alive_max_attempt=1,cas_backoff_max_seconds=0";
  const std::string idle = "timeout, close_timeout, cas_backoff_max_seconds";
  for (const Words& line : {Words{"--rdzv-backend=c10d", "--rdzv-endpoint=n1", all, "E"},
                            Words{"--standalone", all, "E"}}) {
    EXPECT_EQ(good(line).warnings,
              (Words{"--rdzv-conf: without effect with the c10d backend: " + idle}));
  }
  EXPECT_EQ(good({"--rdzv-conf=timeout=3", "E"}).warnings, Words{});
}

// torchrun runs in each of these: its backend never looks at the value. The first is how PyTorch's
// own tests and lists in YAML pass it, with literal quotes.
TEST(Options, WarnOfBadConfValuesThatTheBackendDoesNotRead) {
  const Words c10d = {"--rdzv-backend=c10d", "--rdzv-endpoint=n1"};
  const std::string quoted = "--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'";
  EXPECT_EQ(
      good({c10d[0], c10d[1], quoted, "E"}).warnings,
      (Words{quoted + ": expected timeout to be a whole number above 0; the c10d backend does "
                      "not read it",
             quoted + ": the key 'join_timeout is not known and has no effect"}));
  EXPECT_EQ(good({c10d[0], c10d[1], "--rdzv-conf=timeout=0", "E"}).warnings.size(), 1U);
  EXPECT_EQ(good({"--rdzv-conf=join_timeout=x,store_type=file", "E"}).warnings.size(), 2U);
  EXPECT_EQ(bad({"--rdzv-conf=timeout=0", "E"}),
            "1 ddprun: --rdzv-conf=timeout=0: expected timeout to be a whole number above 0");
  EXPECT_EQ(
      bad({"--rdzv-backend=c10d", "--rdzv-endpoint=n1", "--rdzv-conf=resize_wait=-1", "E"}),
      "1 ddprun: --rdzv-conf=resize_wait=-1: expected resize_wait to be a whole number from 0");
}

TEST(Options, WarnWhereEachNodeLooksForTheOthersAtItself) {
  EXPECT_EQ(good({"--nnodes=2", "E"}).warnings,
            (Words{"--nnodes=2 without --rdzv-endpoint: each node looks for the others at its own "
                   "127.0.0.1:29500: type --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT on all "
                   "nodes, with one of them as HOST"}));
  EXPECT_EQ(good({"E"}, {{"PET_NNODES", "2"}}).warnings.size(), 1U);
  for (const char* flag : {"--master-addr=node01", "--rdzv-endpoint=node01:29500",
                           "--master-port=29501", "--nnodes=1"}) {
    EXPECT_EQ(good({"--nnodes=2", flag, "E"}).warnings, Words{}) << flag;
  }
}

TEST(Options, TakeElasticSizesWithC10d) {
  const Options options = good({"--nnodes=1:4", "--rdzv-backend=c10d", "E"});
  EXPECT_EQ(options.nodes, (NodeCount{1, 4}));
  EXPECT_EQ(bad({"--nnodes=1:2", "E"}),
            "1 ddprun: --nnodes=1:2: expected one number with --rdzv-backend=static; MIN:MAX needs "
            "--rdzv-backend=c10d");
}

TEST(Options, RoundSizesToMultiplesOfTheUnit) {
  const Options options = good({"--nnodes=1:5", "--node-unit=2", "--rdzv-backend=c10d", "E"});
  EXPECT_EQ(options.nodes, (NodeCount{2, 4}));
  EXPECT_EQ(options.node_unit, 2);
  EXPECT_EQ(bad({"--nnodes=2", "--node-unit=0", "E"}),
            "1 ddprun: --node-unit=0: expected a whole number above 0");
  EXPECT_EQ(bad({"--nnodes=3", "--node-unit=2", "--rdzv-backend=c10d", "E"}),
            "1 ddprun: --node-unit=2: expected a number of which --nnodes=3 holds a multiple");
}

TEST(Options, RefuseWhatIsNotBuiltYet) {
  EXPECT_EQ(bad({"--rdzv-backend=c10d", "--rdzv-endpoint=n1", "--rdzv-conf=store_type=file", "E"}),
            "2 ddprun: --rdzv-conf=store_type=file: store_type=file is not built yet");
}

// Acceptance case 5.
TEST(Options, Case5LetTheCommandLineBeatThePetVariable) {
  const Variables two = {{"PET_NPROC_PER_NODE", "2"}};
  EXPECT_EQ(good({"E"}, two).workers_per_node, 2);
  EXPECT_EQ(good({"--nproc-per-node=1", "E"}, two).workers_per_node, 1);
}

// Acceptance cases 6 and 7.
TEST(Options, Cases6And7TakeSwitchesFromVariables) {
  const Options options = good({"./E"}, {{"PET_STANDALONE", "1"}, {"PET_NO_PYTHON", "1"}});
  EXPECT_TRUE(options.standalone);
  EXPECT_EQ(options.mode, Mode::kProgram);
  EXPECT_EQ(options.run_id, "a-fresh-id");
  EXPECT_TRUE(good({"E"}, {{"PET_STANDALONE", "true"}}).standalone);
}

// Acceptance case 62.
TEST(Options, Case62CountWorkersByWord) {
  EXPECT_EQ(good({"--nproc-per-node=cpu", "E"}, {}, {8, 2}).workers_per_node, 8);
  EXPECT_EQ(good({"--nproc-per-node=gpu", "E"}, {}, {8, 2}).workers_per_node, 2);
  EXPECT_EQ(good({"--nproc-per-node=auto", "E"}, {}, {8, 2}).workers_per_node, 2);
  EXPECT_EQ(good({"--nproc-per-node=auto", "E"}, {}, {8, 0}).workers_per_node, 8);
  EXPECT_EQ(bad({"--nproc-per-node=gpu", "E"}, {}, {8, 0}),
            "1 ddprun: --nproc-per-node=gpu: no GPU is visible on this node");
  EXPECT_TRUE(good({"--nproc-per-node=auto", "E"}, {}, {8, 0}).warnings.empty());
}

FakeHost with(Accelerators accelerators) { return {.accelerators = std::move(accelerators)}; }

TEST(Options, CountWorkersByTheAcceleratorThatIsThere) {
  const auto workers = [](const char* word, const Accelerators& here) {
    return good({std::string("--nproc-per-node=") + word, "E"}, {}, with(here)).workers_per_node;
  };
  const AcceleratorCount nvidia{AcceleratorKind::kNvidia, 8, 6, 6};
  const AcceleratorCount amd{AcceleratorKind::kAmd, 4, 4, 4};
  const AcceleratorCount intel{AcceleratorKind::kIntel, 3, 3, 3};
  const AcceleratorCount ascend{AcceleratorKind::kAscend, 16, 16, 16};
  const AcceleratorCount gaudi{AcceleratorKind::kGaudi, 7, 7, 7};
  for (const auto* word : {"gpu", "auto"}) {
    EXPECT_EQ(workers(word, {nvidia, amd, intel}), 6);
    EXPECT_EQ(workers(word, {{AcceleratorKind::kNvidia, 8}, amd}), 4) << "NVIDIA's are hidden";
    EXPECT_EQ(workers(word, {intel}), 3);
    EXPECT_EQ(workers(word, {ascend}), 16);
    EXPECT_EQ(workers(word, {gaudi}), 7);
  }
  EXPECT_EQ(workers("xpu", {nvidia, intel}), 3);
  EXPECT_EQ(workers("npu", {nvidia, ascend}), 16);
  EXPECT_EQ(workers("hpu", {nvidia, gaudi}), 7);
}

TEST(Options, CountInstancesOfMigForWorkersThatAreHandedOneEach) {
  const FakeHost host = with({{AcceleratorKind::kNvidia, 1, 1, 3}});
  EXPECT_EQ(good({"--nproc-per-node=gpu", "E"}, {}, host).workers_per_node, 1);
  const Options apart = good({"--nproc-per-node=gpu", "--virtual-local-rank", "E"},
                             {{"CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2,MIG-3"}}, host);
  EXPECT_EQ(apart.workers_per_node, 3);
  EXPECT_EQ(apart.virtual_devices, (Words{"MIG-1", "MIG-2", "MIG-3"}));
}

TEST(Options, SayWhyAutoCountsTheCpusBesideAnAccelerator) {
  const FakeHost hidden = with({{.kind = AcceleratorKind::kNvidia, .here = 2, .why_none = "why"},
                                {.kind = AcceleratorKind::kAmd, .here = 1, .why_none = "so"}});
  const Options options = good({"--nproc-per-node=auto", "E"}, {}, hidden);
  EXPECT_EQ(options.workers_per_node, 8);
  EXPECT_EQ(options.warnings, Words{"--nproc-per-node=auto counts the CPUs: why, and so"});
  EXPECT_EQ(bad({"--nproc-per-node=gpu", "E"}, {}, hidden),
            "1 ddprun: --nproc-per-node=gpu: no GPU is visible on this node: why, and so");
  EXPECT_EQ(bad({"--nproc-per-node=npu", "E"}, {}, hidden),
            "1 ddprun: --nproc-per-node=npu: no Ascend NPU is visible on this node");
}

TEST(Options, NeverTakeDevicesThatCannotBeCountedForCpus) {
  const AcceleratorCount uncounted{
      .kind = AcceleratorKind::kUncounted, .here = 1, .why_none = "give their number"};
  const FakeHost host =
      with({{.kind = AcceleratorKind::kNvidia, .here = 2, .why_none = "why"}, uncounted});
  EXPECT_EQ(bad({"--nproc-per-node=auto", "E"}, {}, host),
            "1 ddprun: --nproc-per-node=auto: why, and give their number");
  EXPECT_EQ(good({"--nproc-per-node=cpu", "E"}, {}, host).workers_per_node, 8);
  EXPECT_EQ(good({"--nproc-per-node=2", "E"}, {}, host).workers_per_node, 2);
  const AcceleratorCount nvidia{AcceleratorKind::kNvidia, 1, 1, 1};
  EXPECT_EQ(good({"--nproc-per-node=auto", "E"}, {}, with({nvidia, uncounted})).workers_per_node,
            1);
}

// The variables of a worker of --virtual-local-rank, and its devices.
TEST(Options, GiveEachWorkerADeviceOfTheKindThatIsThere) {
  struct Case {
    const char* workers;
    Accelerators here;
    Variables variables;
    Words names;
    Words devices;
  };
  const AcceleratorCount nvidia{AcceleratorKind::kNvidia, 2, 2, 2};
  const AcceleratorCount amd{AcceleratorKind::kAmd, 2, 2, 2};
  const AcceleratorCount intel{AcceleratorKind::kIntel, 2, 2, 2};
  const AcceleratorCount ascend{AcceleratorKind::kAscend, 2, 2, 2};
  AcceleratorCount gaudi{AcceleratorKind::kGaudi, 2, 2, 2};
  gaudi.names = {"6", "7"};
  const std::vector<Case> cases = {
      {"2", {}, {}, {"CUDA_VISIBLE_DEVICES"}, {"0", "1"}},
      {"2", {nvidia}, {{"CUDA_VISIBLE_DEVICES", "7,5"}}, {"CUDA_VISIBLE_DEVICES"}, {"7", "5"}},
      {"2",
       {nvidia},
       {{"CUDA_VISIBLE_DEVICES", "7,5"}, {"HIP_VISIBLE_DEVICES", "1,0"}},
       {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"},
       {"1", "0"}},
      {"gpu", {amd}, {}, {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}, {"0", "1"}},
      {"gpu",
       {amd},
       {{"CUDA_VISIBLE_DEVICES", "3,2"}},
       {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"},
       {"3", "2"}},
      {"auto", {intel}, {{"ZE_AFFINITY_MASK", "2,3"}}, {"ZE_AFFINITY_MASK"}, {"2", "3"}},
      {"auto", {intel}, {{"CUDA_VISIBLE_DEVICES", "7,5"}}, {"ZE_AFFINITY_MASK"}, {"0", "1"}},
      {"npu", {nvidia, ascend}, {}, {"ASCEND_RT_VISIBLE_DEVICES"}, {"0", "1"}},
      {"2", {ascend}, {}, {"ASCEND_RT_VISIBLE_DEVICES"}, {"0", "1"}},
      {"hpu", {gaudi}, {}, {"HABANA_VISIBLE_MODULES"}, {"6", "7"}},
      {"hpu", {gaudi}, {{"HABANA_VISIBLE_MODULES", "4,5"}}, {"HABANA_VISIBLE_MODULES"}, {"4", "5"}},
  };
  for (const Case& one : cases) {
    const Options options =
        good({"--virtual-local-rank", std::string("--nproc-per-node=") + one.workers, "E"},
             one.variables, with(one.here));
    EXPECT_EQ(options.device_variables, one.names) << one.workers;
    EXPECT_EQ(options.virtual_devices, one.devices) << one.workers;
  }
  EXPECT_EQ(bad({"--virtual-local-rank", "--nproc-per-node=3", "E"}, {}, with({gaudi})),
            "1 ddprun: --virtual-local-rank: a node with 2 Gaudis has no device for local rank 2");
  EXPECT_EQ(bad({"--virtual-local-rank", "--nproc-per-node=xpu", "E"},
                {{"ONEAPI_DEVICE_SELECTOR", "level_zero:0,1"}}, with({intel})),
            "1 ddprun: --virtual-local-rank: ONEAPI_DEVICE_SELECTOR=level_zero:0,1 has numbers: "
            "unset it, and give the devices by ZE_AFFINITY_MASK");
}

TEST(Options, LeaveAnIntegratedGpuToItsOwnWord) {
  const FakeHost host = with({{AcceleratorKind::kIntel, 1, 1, 1, true, "it is integrated"}});
  EXPECT_EQ(good({"--nproc-per-node=xpu", "E"}, {}, host).workers_per_node, 1);
  EXPECT_EQ(good({"--nproc-per-node=auto", "E"}, {}, host).workers_per_node, 8);
  EXPECT_EQ(bad({"--nproc-per-node=gpu", "E"}, {}, host),
            "1 ddprun: --nproc-per-node=gpu: no GPU is visible on this node: it is integrated");
}

TEST(Options, BoundTheWorkersOfANode) {
  EXPECT_EQ(good({"--nproc-per-node=4096", "E"}).workers_per_node, kMaxWorkersPerNode);
  EXPECT_EQ(bad({"--nproc-per-node=4097", "E"}),
            "1 ddprun: --nproc-per-node=4097: expected at most 4096 workers");
  for (const auto* none : {"0", "-2", "zero", "", "1.5", "tpu", "mlu"}) {
    EXPECT_EQ(bad({"--nproc-per-node", none, "E"}),
              "1 ddprun: --nproc-per-node=" + std::string(none) +
                  ": expected a number above 0, cpu, gpu, auto, xpu, npu or hpu");
  }
}

TEST(Options, TellScriptsModulesAndProgramsApart) {
  EXPECT_EQ(good({"-m", "mod", "a"}).mode, Mode::kModule);
  EXPECT_EQ(good({"--no-python", "E"}).mode, Mode::kProgram);
  EXPECT_EQ(good({"--run-path", "E"}).mode, Mode::kRunPath);
  EXPECT_EQ(good({"--run-path", "--no-python", "E"}).mode, Mode::kRunPath);
  EXPECT_EQ(good({"-m", "mod", "a", "-b"}).script_args, (Words{"a", "-b"}));
}

TEST(Options, StandaloneReplacesBackendEndpointAndId) {
  const Options options =
      good({"--standalone", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:1", "--rdzv-id=x", "E"});
  EXPECT_EQ(options.rendezvous, Rendezvous::kLocal);
  EXPECT_EQ(options.run_id, "a-fresh-id");
  EXPECT_EQ(options.endpoint, Endpoint{});
  EXPECT_TRUE(options.warnings.empty());
}

TEST(Options, StandaloneIsForOneNode) {
  EXPECT_EQ(bad({"--standalone", "--nnodes=2", "E"}),
            "1 ddprun: --nnodes=2: expected 1 node with --standalone");
}

TEST(Options, StaticOnOneNodeTakesAPortOnlyWhenGiven) {
  EXPECT_EQ(good({"--master-addr=127.0.0.1", "E"}).rendezvous, Rendezvous::kLocal);
  const Options given = good({"--master-port=29501", "E"});
  EXPECT_EQ(given.rendezvous, Rendezvous::kStatic);
  EXPECT_EQ(given.endpoint, (Endpoint{"127.0.0.1", 29501}));
  EXPECT_EQ(good({"E"}, {{"PET_MASTER_PORT", "29501"}}).endpoint.port, 29501);
  EXPECT_EQ(good({"--master-port=0", "E"}).rendezvous, Rendezvous::kLocal);
}

TEST(Options, StaticOnSeveralNodesHasTorchrunsAddress) {
  const Options options = good({"--nnodes=2", "--node-rank=1", "E"});
  EXPECT_EQ(options.rendezvous, Rendezvous::kStatic);
  EXPECT_EQ(options.endpoint, (Endpoint{"127.0.0.1", kDefaultMasterPort}));
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(good({"--nnodes=2", "--master-addr=n1", "--master-port=7", "E"}).endpoint,
            (Endpoint{"n1", 7}));
}

TEST(Options, StaticTakesTheEndpointForTheMaster) {
  EXPECT_EQ(good({"--rdzv-endpoint=n1:5", "E"}).endpoint, (Endpoint{"n1", 5}));
  EXPECT_EQ(bad({"--rdzv-endpoint=n1", "E"}),
            "1 ddprun: --rdzv-endpoint=n1: expected HOST:PORT with --rdzv-backend=static");
}

TEST(Options, StaticChecksTheNodeRank) {
  EXPECT_EQ(bad({"--nnodes=2", "--node-rank=2", "E"}),
            "1 ddprun: --node-rank=2: expected a rank below the number of nodes, 2");
  EXPECT_EQ(bad({"--node-rank=1", "E"}),
            "1 ddprun: --node-rank=1: expected a rank below the number of nodes, 1");
  EXPECT_EQ(bad({"--nnodes=2", "--node-rank=-1", "E"}),
            "1 ddprun: --node-rank=-1: expected a whole number from 0");
}

TEST(Options, C10dHasTorchrunsPort) {
  const Options options =
      good({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=n1", "--rdzv-id=job", "E"});
  EXPECT_EQ(options.rendezvous, Rendezvous::kC10d);
  EXPECT_EQ(options.endpoint, (Endpoint{"n1", kDefaultRendezvousPort}));
  EXPECT_EQ(options.run_id, "job");
  EXPECT_EQ(good({"--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:7", "E"}).endpoint,
            (Endpoint{"::1", 7}));
}

TEST(Options, C10dWithoutEndpointWarns) {
  const Options options = good({"--rdzv-backend=c10d", "E"});
  EXPECT_EQ(options.endpoint, (Endpoint{"localhost", kDefaultRendezvousPort}));
  EXPECT_EQ(options.warnings,
            (Words{"--rdzv-backend=c10d without --rdzv-endpoint: taking localhost:29400"}));
}

TEST(Options, AnyFreePortIsForOneNode) {
  EXPECT_EQ(good({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "E"}).rendezvous,
            Rendezvous::kLocal);
  EXPECT_EQ(bad({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:0", "E"}),
            "1 ddprun: --rdzv-endpoint=n1:0: expected a port above 0 for several nodes");
  EXPECT_EQ(bad({"--nnodes=2", "--master-port=0", "E"}),
            "1 ddprun: --master-port=0: expected a port above 0 for several nodes");
}

TEST(Options, ANodeRankIsPreferredWithC10d) {
  const Words c10d = {"--rdzv-backend=c10d", "--rdzv-endpoint=n1", "E"};
  EXPECT_EQ(good(c10d).node_rank, -1);
  const Options chosen = good({"--rdzv-backend=c10d", "--rdzv-endpoint=n1", "--node-rank=7", "E"});
  EXPECT_EQ(chosen.node_rank, 7);
  EXPECT_EQ(chosen.warnings, Words{});
}

TEST(Options, EtcdHasMembers) {
  const Options options = good({"--nnodes=1:3", "--rdzv-backend=etcd", "--rdzv-endpoint=h1:2380,h2",
                                "--rdzv-conf=read_timeout=7", "E"});
  EXPECT_EQ(options.rendezvous, Rendezvous::kEtcd);
  EXPECT_EQ(options.rendezvous_conf.etcd.members,
            (std::vector<rendezvous::EtcdMemberPlan>{{"h1", 2380}, {"h2", kDefaultEtcdPort}}));
  EXPECT_EQ(options.node_rank, -1);
  EXPECT_EQ(options.warnings, Words{});
  EXPECT_EQ(good({"--rdzv-backend=etcd-v2", "--rdzv-endpoint=h1", "E"}).warnings,
            (Words{"--rdzv-backend=etcd-v2: etcd's v3 API is spoken"}));
}

TEST(Options, EtcdRefusesWhatDoesNotFit) {
  const auto refused = [](const std::string& endpoint, const std::string& conf) {
    return bad({"--rdzv-backend=etcd", "--rdzv-endpoint=" + endpoint, "--rdzv-conf=" + conf, "E"});
  };
  EXPECT_EQ(refused("h1:0", ""),
            "1 ddprun: --rdzv-endpoint=h1:0: expected up to 16 members of etcd, "
            "HOST[:PORT],HOST[:PORT],…");
  EXPECT_EQ(bad({"--rdzv-backend=etcd", "E"}),
            "1 ddprun: --rdzv-endpoint=: expected up to 16 members of etcd, "
            "HOST[:PORT],HOST[:PORT],…");
  EXPECT_EQ(refused("h1", "cacert=a"),
            "1 ddprun: --rdzv-conf=cacert=a: expected protocol=https with cacert, cert or key");
  EXPECT_EQ(refused("h1", "protocol=https,cert=a"),
            "1 ddprun: --rdzv-conf=protocol=https,cert=a: expected both or none of cert and key");
  EXPECT_EQ(refused("h1", "protocol=ftp"),
            "1 ddprun: --rdzv-conf=protocol=ftp: expected protocol to be http or https");
  EXPECT_EQ(refused("h1", "daemons=a/b"),
            "1 ddprun: --rdzv-conf=daemons=a/b: expected a group of 1 to 64 letters, digits, dots, "
            "hyphens and underscores");
}

TEST(Options, NodesFollowAGroupOfDaemonsInEtcdAlone) {
  const Options options = good(
      {"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=h1", "--rdzv-conf=daemons=g", "E"});
  EXPECT_EQ(options.rendezvous_conf.etcd.daemons, "g");
  EXPECT_EQ(options.warnings, Words{});
  EXPECT_EQ(good({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h1",
                  "--rdzv-conf=daemons=g", "E"})
                .warnings,
            (Words{"--rdzv-conf: without effect with the c10d backend: daemons"}));
}

TEST(Options, TlsHasThreeFiles) {
  for (const char* backend : {"static", "c10d", "etcd"}) {
    const Options options =
        good({"--nnodes=2", std::string("--rdzv-backend=") + backend, "--rdzv-endpoint=h1:1",
              "--rdzv-conf=tls_ca=a,tls_cert=b,tls_key=c,tls_mixed=yes", "E"});
    EXPECT_EQ(options.rendezvous_conf.tls, (agent::TlsPlan{"a", "b", "c", true}));
    EXPECT_EQ(options.warnings, Words{});
  }
  const auto refused = [](const std::string& conf) {
    return bad({"--rdzv-backend=c10d", "--rdzv-endpoint=h1", "--rdzv-conf=" + conf, "E"});
  };
  EXPECT_EQ(refused("tls_ca=a,tls_cert=b"),
            "1 ddprun: --rdzv-conf=tls_ca=a,tls_cert=b: expected all or none of tls_ca, tls_cert "
            "and tls_key");
  EXPECT_EQ(
      refused("tls_mixed=1"),
      "1 ddprun: --rdzv-conf=tls_mixed=1: expected tls_ca, tls_cert and tls_key with tls_mixed");
  EXPECT_EQ(
      refused("tls_mixed=2"),
      "1 ddprun: --rdzv-conf=tls_mixed=2: expected tls_mixed to be 1 or 0, true or false, yes "
      "or no");
}

TEST(Options, NoMessageShowsThePassword) {
  EXPECT_EQ(bad({"--rdzv-backend=etcd", "--rdzv-endpoint=h1",
                 "--rdzv-conf=password=sesame,join_timeout=4,password=open", "E"}),
            "1 ddprun: --rdzv-conf=password=…,join_timeout=4,password=…: expected both or none "
            "of "
            "username "
            "and password");
  const Options options = good({"--rdzv-backend=c10d", "--rdzv-endpoint=h1", "E"},
                               {{"PET_RDZV_CONF", "x=1,password=sesame"}});
  for (const std::string& warning : options.warnings)
    EXPECT_EQ(warning.find("sesame"), std::string::npos) << warning;
  EXPECT_EQ(options.warnings.size(), 2U);
}

TEST(Options, WarnOfAPasswordThatOthersCanRead) {
  const std::vector<std::string> etcd{"--rdzv-backend=etcd", "--rdzv-endpoint=h1"};
  const auto warnings = [&etcd](const std::string& conf, bool by_variable) {
    std::vector<std::string> line = etcd;
    if (!by_variable) line.push_back("--rdzv-conf=" + conf);
    line.emplace_back("E");
    std::map<std::string, std::string> variables;
    if (by_variable) variables["PET_RDZV_CONF"] = conf;
    return good(line, variables).warnings;
  };
  const auto told = warnings("username=u,password=p", false);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told[0].find("password_file=PATH"), std::string::npos);
  EXPECT_TRUE(warnings("username=u,password=p", true).empty());
  EXPECT_TRUE(warnings("username=u,password_file=/p", false).empty());
  EXPECT_EQ(
      bad({"--rdzv-backend=etcd", "--rdzv-endpoint=h1",
           "--rdzv-conf=username=u,password=p,password_file=/p", "E"}),
      "1 ddprun: --rdzv-conf=username=u,password=…,password_file=/p: expected one of password "
      "and "
      "password_file");
}

TEST(Options, WarnOfFlagsWithoutEffect) {
  EXPECT_EQ(good({"--rdzv-backend=c10d", "--rdzv-endpoint=n1", "--master-port=5", "E"}).warnings,
            (Words{"--master-port=5 has no effect with --rdzv-backend=c10d"}));
  EXPECT_EQ(good({"--standalone", "--master-port=5", "E"}).warnings,
            (Words{"--master-port=5 has no effect with --standalone"}));
  EXPECT_EQ(good({"--standalone", "--node-rank=0", "E"}).warnings, Words{});
  EXPECT_EQ(good({"--master-addr=n1", "E"}).warnings,
            (Words{"--master-addr=n1 has no effect on one node without --master-port"}));
  EXPECT_EQ(good({"E"}, {{"PET_START_METHOD", "bogus"}}).warnings,
            (Words{"PET_START_METHOD=bogus has no effect on workers"}));
  EXPECT_EQ(
      good({"--rdzv-conf=jion_timeout=3", "E"}).warnings,
      (Words{"--rdzv-conf=jion_timeout=3: the key jion_timeout is not known and has no effect"}));
}

TEST(Options, CheckTheRunId) {
  EXPECT_EQ(good({"--rdzv-id=", "E"}).run_id, "a-fresh-id");
  EXPECT_EQ(bad({"--nnodes=2", "--rdzv-id=", "E"}),
            "1 ddprun: --rdzv-id=: expected an id, the same on all nodes");
  EXPECT_EQ(bad({"--rdzv-id=a/b", "E"}),
            "1 ddprun: --rdzv-id=a/b: expected no slash, as the log folder bears this name");
  EXPECT_EQ(good({"--rdzv-id=a/b", "--log-dir=/dev/null", "E"}).run_id, "a/b");
}

TEST(Options, ReadOutputAndTheRest) {
  const Options options =
      good({"--log-dir=L", "-r", "0:1,1:2", "-t3", "--role=trn", "--max_restarts", "3",
            "--local-addr=10.0.0.2", "--rdzv-conf=join_timeout=4,is_host=1", "E"});
  EXPECT_EQ(options.log_dir, "L");
  EXPECT_EQ(options.redirects.of(1), Streams::kErr);
  EXPECT_EQ(options.tees.of(7), Streams::kBoth);
  EXPECT_EQ(options.role, "trn");
  EXPECT_EQ(options.restarts.max_restarts, 3);
  EXPECT_EQ(options.local_addr, "10.0.0.2");
  EXPECT_EQ(options.rendezvous_conf.settings.join_timeout, std::chrono::seconds(4));
  EXPECT_EQ(options.rendezvous_conf.is_host, true);
  EXPECT_EQ(good({"--role=", "E"}).role, "");
}

TEST(Options, TakeTheGraceFromTheNearestSource) {
  const Variables one = {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1"}};
  EXPECT_EQ(good({"E"}, one).shutdown_timeout.count(), 1);
  EXPECT_EQ(good({"--shutdown-timeout=2", "E"}, one).shutdown_timeout.count(), 2);
  EXPECT_EQ(good({"--shutdown-timeout=0", "E"}).shutdown_timeout.count(), 0);
  EXPECT_EQ(bad({"E"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon"}}),
            "1 ddprun: TORCH_ELASTIC_SHUTDOWN_TIMEOUT=soon: expected whole seconds from 0");
}

TEST(Options, ReadPythonsLogLevels) {
  EXPECT_EQ(good({"E"}, {{"LOGLEVEL", "DEBUG"}}).log_level, log::Level::kDebug);
  EXPECT_EQ(good({"E"}, {{"LOGLEVEL", "INFO"}}).log_level, log::Level::kInfo);
  EXPECT_EQ(good({"E"}, {{"LOGLEVEL", "CRITICAL"}}).log_level, log::Level::kError);
  EXPECT_EQ(bad({"E"}, {{"LOGLEVEL", "loud"}}),
            "1 ddprun: LOGLEVEL=loud: expected DEBUG, INFO, WARNING, ERROR or CRITICAL");
}

// torchrun compares with "1", and its static backend does not ask.
TEST(Options, LeaveTheStoreToTheWorkers) {
  constexpr auto name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";
  const auto shares = [&](const Words& args, const std::string& value) {
    const Options options = good(args, {{name, value}});
    EXPECT_EQ(options.warnings, Words{});
    return options.shares_store;
  };
  const Words c10d{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "E"};
  EXPECT_TRUE(good({"E"}).shares_store);
  EXPECT_FALSE(shares({"E"}, "1"));
  EXPECT_FALSE(shares({"--standalone", "E"}, "1"));
  EXPECT_FALSE(shares(c10d, "1"));
  for (const char* other : {"", "0", "true", "True", "yes", "2", " 1"})
    EXPECT_TRUE(shares(c10d, other)) << other;
}

TEST(Options, WarnOfVariablesWithoutEffect) {
  const Options fixed =
      good({"--master-port=4000", "E"}, {{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}});
  EXPECT_TRUE(fixed.shares_store);
  EXPECT_EQ(fixed.warnings,
            (Words{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 has no effect: with "
                   "--rdzv-backend=static ddprun serves the store at MASTER_PORT"}));
  EXPECT_EQ(good({"E"}, {{"TORCH_ELASTIC_WORKER_IDENTICAL", "1"}}).warnings, Words{});
}

TEST(Options, EveryMessageIsOneLine) {
  for (const Words& line :
       {Words{}, {"--nope"}, {"--nproc", "1", "E"}, {"--nnodes=0", "E"}, {"--tee", "9", "E"}}) {
    const std::string message = bad(line);
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 0) << message;
    EXPECT_EQ(message.substr(1, 9), " ddprun: ") << message;
  }
}

}  // namespace
}  // namespace ddprun::launcher
