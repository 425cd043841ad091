#include "launcher/doctor/judge.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <functional>
#include <utility>

#include "launcher/doctor/examination.h"

namespace ddprun::launcher {
namespace {

constexpr std::uint64_t kGiB = 1ULL << 30U;

NodeQuestion healthy_question() {
  return {.workers = 2,
          .nodes = 2,
          .gpus = 2,
          .script = "train.py",
          .endpoint_host = "node01",
          .endpoint_port = 29500,
          .served_port = 29500,
          .threads = 1,
          .quota = 8,
          .allowed_cpus = 8,
          .variables = {{"NCCL_SOCKET_IFNAME", "eth"}, {"GLOO_SOCKET_IFNAME", "eth0"}}};
}

NodeFacts healthy_facts() {
  return {
      .host_name = "node01",
      .kernel = "4.18.0-553.el8_10.x86_64",
      .python =
          PythonFacts{
              .path = "/usr/bin/python3", .version = "3.11.2", .torch = "2.11.0", .cuda = "12.8"},
      .gpus = GpuFacts{.listed = 2,
                       .can_open = true,
                       .has_query = true,
                       .rows = {{"0", "H100", "580.1", "Enabled", "0", "No", "No"},
                                {"1", "H100", "580.1", "Enabled", "[N/A]", "[N/A]", "No"}}},
      .interfaces = {"eth0", "lo"},
      .interfaces_up = {"eth0", "lo"},
      .infiniband = {"mlx5_0"},
      .shared_memory = Space{64 * kGiB, 63 * kGiB, true},
      .temporary = Space{64 * kGiB, 63 * kGiB, true},
      .limits = {.open_files = 1024,
                 .most_open_files = 1048576,
                 .locked_bytes = RLIM_INFINITY,
                 .processes = 30000},
      .own_name = LookUp{{"10.77.0.1"}, 0.001},
      .endpoint = EndpointFacts{.found = {{"10.77.0.1"}, 0.001}, .is_here = true},
      .memory_limit_bytes = 16 * kGiB,
      .orphans = 0,
      .script = ScriptFacts{.is_usable = true, .seconds = 0.001}};
}

// The lines that are not ok.
std::string trouble(const NodeQuestion& question, const NodeFacts& facts) {
  Findings found = judge_node(question, facts);
  std::erase_if(found, [](const Finding& one) { return one.level == Level::kOk; });
  return text_of(found);
}

std::string with(const std::function<void(NodeQuestion&, NodeFacts&)>& plant) {
  NodeQuestion question = healthy_question();
  NodeFacts facts = healthy_facts();
  plant(question, facts);
  return trouble(question, facts);
}

std::string kernel_line(const std::string& release, std::vector<NewCall> missing) {
  NodeFacts facts = healthy_facts();
  facts.kernel = release;
  facts.missing_calls = std::move(missing);
  Findings found = judge_node(healthy_question(), facts);
  std::erase_if(found, [](const Finding& one) { return one.what != "kernel"; });
  return text_of(found);
}

TEST(Judge, NamesTheCallsThatAreMissingAndWhatIsLost) {
  EXPECT_EQ(kernel_line("6.1.0-18-amd64", {}), "ok   kernel: Linux 6.1.0-18-amd64\n");
  EXPECT_EQ(kernel_line("4.18.0", {NewCall::kCloseRange, NewCall::kFutexWaitv}),
            "ok   kernel: Linux 4.18.0; without close_range with CLOSE_RANGE_CLOEXEC (nothing "
            "is lost: descriptors are kept from workers one by one); without futex_waitv (a "
            "worker's death is noticed after the kernel has freed its memory, 0.1 s and more "
            "later)\n");
}

TEST(Judge, WarnsOfAKernelThatNobodyHasTried) {
  for (const char* release : {"4.17.19", "3.10.0-1160.el7", "4", "", "x.y"})
    EXPECT_EQ(kernel_line(release, {}),
              fmt::format("warn kernel: Linux {} — a kernel from 4.18 on: nobody has tried an "
                          "older one\n",
                          release));
  for (const char* release : {"4.18.0", "4.19", "5.4.0", "10.0"})
    EXPECT_EQ(kernel_line(release, {}).substr(0, 2), "ok") << release;
}

TEST(Judge, SaysWhichTorchrunIsThere) {
  const auto line = [](Torchrun torchrun, bool is_kept) {
    NodeFacts facts = healthy_facts();
    facts.shims = {"/v/bin", torchrun, is_kept};
    Findings found = judge_node(healthy_question(), facts);
    std::erase_if(found, [](const Finding& one) { return one.what != "torchrun"; });
    return text_of(found);
  };
  EXPECT_EQ(line(Torchrun::kNone, false), "");
  EXPECT_EQ(line(Torchrun::kOther, false), "") << "nobody asked for a link";
  EXPECT_EQ(line(Torchrun::kOurs, true), "ok   torchrun: /v/bin/torchrun is ddprun\n");
  EXPECT_EQ(line(Torchrun::kOther, true),
            "warn torchrun: /v/bin/torchrun is torch's again: an installer has put it back — "
            "`ddprun shims on`, or `ddprun shims off`\n");
  EXPECT_EQ(line(Torchrun::kNone, true),
            "warn torchrun: /v/bin/torchrun is gone: an installer has removed it — `ddprun shims "
            "on`, or `ddprun shims off`\n");
}

TEST(Doctor, FindsNothingOnAHealthyNode) {
  EXPECT_EQ(trouble(healthy_question(), healthy_facts()), "");
  EXPECT_FALSE(has_failure(judge_node(healthy_question(), healthy_facts())));
}

TEST(Doctor, FindsOneFaultAndItsFix) {
  using Plant = std::function<void(NodeQuestion&, NodeFacts&)>;
  const std::vector<std::pair<const char*, Plant>> cases = {
      {"FAIL python: no python3 on PATH — activate the environment, or set "
       "PYTHON_EXEC=/path/to/python\n",
       [](auto&, auto& facts) { facts.python->path = ""; }},
      {"warn python: no python3 on PATH — activate the environment, or set "
       "PYTHON_EXEC=/path/to/python\n",
       [](auto& question, auto& facts) { facts.python->path = question.script = ""; }},
      {"FAIL python: no python3 on PATH — activate the environment, or set "
       "PYTHON_EXEC=/path/to/python\n",
       [](auto& question, auto& facts) {
         facts.python->path = question.script = "";
         question.mode = Mode::kModule;
       }},
      {"FAIL python: looking for it takes too long — `echo $PATH`, and `stat -f` of each folder: "
       "the "
       "file system of one of them hangs\n",
       [](auto&, auto& facts) { facts.python.reset(); }},
      {"FAIL python: /usr/bin/python3 hangs: it did not answer in time — run it by hand: a slow "
       "file "
       "system, or a sitecustomize that hangs\n",
       [](auto&, auto& facts) { facts.python->hangs = true; }},
      {"FAIL python: /usr/bin/python3 does not run — `/usr/bin/python3 -c 1` says why\n",
       [](auto&, auto& facts) { facts.python->version = ""; }},
      {"warn python: /usr/bin/python3 3.11.2, without torch — `/usr/bin/python3 -m pip install "
       "torch`, or activate the environment that has it\n",
       [](auto&, auto& facts) { facts.python->torch = ""; }},
      {"FAIL script: train.py does not answer — its file system hangs: `stat -f` says which one, "
       "and "
       "copy the script to a local one\n",
       [](auto&, auto& facts) { facts.script.reset(); }},
      {"FAIL script: train.py cannot be read — check its path and its mode\n",
       [](auto&, auto& facts) { facts.script->is_usable = false; }},
      {"FAIL script: train.py cannot be executed — check its path and its mode\n",
       [](auto&, auto& facts) { facts.script = ScriptFacts{.is_program = true}; }},
      {"warn script: train.py on nfs, read in 1500 ms — copy the program and its Python "
       "environment "
       "to a local disk of each node\n",
       [](auto&, auto& facts) {
         facts.script = ScriptFacts{.file_system = "nfs", .is_usable = true, .seconds = 1.5};
       }},
      {"FAIL GPUs: 2 on this host, and /dev/nvidiactl cannot be opened — `docker run --gpus all "
       "…`, "
       "or in a pod resources.limits nvidia.com/gpu\n",
       [](auto&, auto& facts) { facts.gpus->can_open = false; }},
      {"warn GPUs: 2 of 8 for 4 workers — `--nproc-per-node=2`\n",
       [](auto& question, auto& facts) {
         question.workers = 4;
         facts.gpus->listed = 8;
       }},
      {"warn GPUs: 2 for 4 workers — `--nproc-per-node=2`\n",
       [](auto& question, auto& facts) {
         question.workers = 4;
         facts.gpus->listed = 0;
       }},
      {"warn GPUs: 2 here, and CUDA_VISIBLE_DEVICES hides all of them — `unset "
       "CUDA_VISIBLE_DEVICES`, or ask the scheduler for them: `srun --gpus-per-node=…`; fine for "
       "a job "
       "without GPUs\n",
       [](auto& question, auto&) { question.gpus = 0; }},
      {"warn AMD GPUs: 2 of 8 for 4 workers — `--nproc-per-node=2`\n",
       [](auto& question, auto&) {
         question.gpus = question.workers = 4;
         question.others = {{AcceleratorKind::kAmd, 8, 2, 2}};
       }},
      {"warn Ascend NPUs: ASCEND_RT_VISIBLE_DEVICES='' hides 2 Ascend NPUs — unset that "
       "variable, or let this user open the file; fine for a job without them\n",
       [](auto& question, auto&) {
         question.others = {{.kind = AcceleratorKind::kAscend,
                             .here = 2,
                             .why_none = "ASCEND_RT_VISIBLE_DEVICES='' hides 2 Ascend NPUs"}};
       }},
      {"FAIL GPU 1: H100: 3 uncorrected memory errors since the driver was loaded — `nvidia-smi "
       "--gpu-reset -i 1` when nothing uses it\n",
       [](auto&, auto& facts) { facts.gpus->rows[1].ecc_errors = "3"; }},
      {"warn GPU 0: H100: persistence mode is off, so each start loads the driver's state anew — "
       "`nvidia-smi -pm 1`\n",
       [](auto&, auto& facts) { facts.gpus->rows[0].persistence = "Disabled"; }},
      {"warn GPU 0: H100: rows of its memory wait to be remapped — `nvidia-smi --gpu-reset -i 0` "
       "when "
       "nothing uses it\n",
       [](auto&, auto& facts) { facts.gpus->rows[0].remap_pending = "Yes"; }},
      {"FAIL GPU 0: H100: rows of its memory cannot be remapped any more — drain the node "
       "(`ddpctl "
       "drain`) and have the card replaced\n",
       [](auto&, auto& facts) { facts.gpus->rows[0].remap_failed = "Yes"; }},
      {"warn GPUs: the kernel's log has NVRM: Xid 79 — `dmesg | grep Xid`, and look the number "
       "up in "
       "NVIDIA's list of Xid errors\n",
       [](auto&, auto& facts) { facts.gpus->xids = {"NVRM: Xid 79"}; }},
      {"warn GPUs: torch 2.11.0 is built without CUDA — `pip install torch` from an index with "
       "CUDA\n",
       [](auto&, auto& facts) { facts.python->cuda = ""; }},
      {"FAIL NCCL_SOCKET_IFNAME: eth, ib0 names no interface here; there are eth0, lo — `unset "
       "NCCL_SOCKET_IFNAME`, or name one of them\n",
       [](auto& question, auto&) { question.variables["NCCL_SOCKET_IFNAME"] = "=eth,ib0"; }},
      {"warn NCCL_SOCKET_IFNAME: ib7 names no interface here; there are eth0, lo — `unset "
       "NCCL_SOCKET_IFNAME`, or name one of them\n",
       [](auto& question, auto&) { question.variables["NCCL_SOCKET_IFNAME"] = "eth0,ib7"; }},
      {"FAIL GLOO_SOCKET_IFNAME: ib7 names no interface here; there are eth0, lo — `unset "
       "GLOO_SOCKET_IFNAME`, or name one of them\n",
       [](auto& question, auto&) { question.variables["GLOO_SOCKET_IFNAME"] = "eth0,ib7"; }},
      {"warn NCCL_IB_HCA: mlx5_1, mlx5_2:1 names no InfiniBand device here; there are mlx5_0 — "
       "`unset "
       "NCCL_IB_HCA`, or name one of them\n",
       [](auto& question, auto&) {
         question.variables["NCCL_IB_HCA"] = "=mlx5_0,mlx5_1,mlx5_2:1";
       }},
      {"warn NCCL_SOCKET_IFNAME: eth0 is down — `ip link set dev IFACE up`, or `unset "
       "NCCL_SOCKET_IFNAME`\n"
       "warn NCCL_SOCKET_IFNAME: ib7 names no interface here; there are eth0, lo — `unset "
       "NCCL_SOCKET_IFNAME`, or name one of them\n",
       [](auto& question, auto& facts) {
         question.variables["NCCL_SOCKET_IFNAME"] = "eth0,ib7";
         facts.interfaces_up = {"lo"};
       }},
      {"FAIL GLOO_SOCKET_IFNAME: eth names no interface here; there are eth0, lo — `unset "
       "GLOO_SOCKET_IFNAME`, or name one of them\n",
       [](auto& question, auto&) { question.variables["GLOO_SOCKET_IFNAME"] = "eth"; }},
      {"FAIL NCCL_IB_HCA: mlx4_0:1 names no InfiniBand device here; there are mlx5_0 — `unset "
       "NCCL_IB_HCA`, or name one of them\n",
       [](auto& question, auto&) { question.variables["NCCL_IB_HCA"] = "mlx4_0:1"; }},
      {"warn NCCL_IB_DISABLE: switches off mlx5_0, which is there — `unset NCCL_IB_DISABLE`\n",
       [](auto& question, auto&) { question.variables["NCCL_IB_DISABLE"] = "1"; }},
      {"warn NCCL_P2P_DISABLE: 2 GPUs may not copy to each other directly — `unset "
       "NCCL_P2P_DISABLE`\n",
       [](auto& question, auto&) { question.variables["NCCL_P2P_DISABLE"] = "1"; }},
      {"warn NCCL_P2P_LEVEL: LOC: 2 GPUs may not copy to each other directly — `unset "
       "NCCL_P2P_LEVEL`\n",
       [](auto& question, auto&) { question.variables["NCCL_P2P_LEVEL"] = "LOC"; }},
      {"warn NCCL_NET: Socket leaves mlx5_0 unused — `unset NCCL_NET`\n",
       [](auto& question, auto&) { question.variables["NCCL_NET"] = "socket"; }},
      {"warn NCCL_SOCKET_IFNAME: eth is down — `ip link set dev IFACE up`, or `unset "
       "NCCL_SOCKET_IFNAME`\n",
       [](auto&, auto& facts) { facts.interfaces_up = {"lo"}; }},
      {"FAIL shared memory: /dev/shm has 60 MiB of 64 MiB free — `docker run --shm-size=8g …`, "
       "or in "
       "a pod an emptyDir of medium Memory at /dev/shm\n",
       [](auto&, auto& facts) {
         facts.shared_memory = Space{64U << 20U, 60U << 20U, true};
       }},
      {"FAIL temporary files: /tmp cannot be written — set TMPDIR to a folder that can\n",
       [](auto&, auto& facts) { facts.temporary->is_writable = false; }},
      {"FAIL open files: 64 may be open — `ulimit -n 516`\n",
       [](auto&, auto& facts) { facts.limits.open_files = 64; }},
      {"warn open files: 1024 may be open — `ulimit -n 2512`\n",
       [](auto& question, auto&) { question.nodes = 1000; }},
      {"warn open files: 300 may be open — `ulimit -Hn 516` as root; in Docker `--ulimit "
       "nofile=516`\n",
       [](auto&, auto& facts) { facts.limits.open_files = facts.limits.most_open_files = 300; }},
      {"warn locked memory: 64 KiB may be locked — `ulimit -l unlimited`; under Slurm "
       "PropagateResourceLimitsExcept=MEMLOCK; in Docker `--ulimit memlock=-1`\n",
       [](auto&, auto& facts) {
         facts.limits.locked_bytes = 64U << 10U;
         facts.infiniband.clear();
       }},
      {"FAIL locked memory: 8 MiB may be locked, and mlx5_0 needs it without a limit — `ulimit "
       "-l "
       "unlimited`; under Slurm PropagateResourceLimitsExcept=MEMLOCK; in Docker `--ulimit "
       "memlock=-1`\n",
       [](auto&, auto& facts) { facts.limits.locked_bytes = 8U << 20U; }},
      {"warn processes: 100 may run; 2 workers want 128 — `ulimit -u 128`, or more pids for the "
       "cgroup\n",
       [](auto&, auto& facts) { facts.limits.processes = 100; }},
      {"warn processors: 1 here, workers take 2 × 1 — `--nproc-per-node=1`, or more "
       "processors\n",
       [](auto& question, auto&) { question.quota = 1; }},
      {"warn processors: 8 here, workers take 2 × 8 — `export OMP_NUM_THREADS=4`\n",
       [](auto& question, auto&) { question.threads = 0; }},
      {"warn memory: 512 MiB for 2 workers — ask for 1.0 GiB: `srun --mem=…`, `docker run "
       "--memory=…`, a pod's resources.limits.memory\n",
       [](auto&, auto& facts) { facts.memory_limit_bytes = kGiB / 2; }},
      {"warn own name: node01 is 127.0.1.1, which other nodes cannot reach — give node01 its "
       "address "
       "towards the others in /etc/hosts, or set GLOO_SOCKET_IFNAME\n",
       [](auto&, auto& facts) { facts.own_name->addresses = {"127.0.1.1"}; }},
      {"FAIL endpoint: no such host: node01 — check the name, or put `ADDRESS node01` into "
       "/etc/hosts\n",
       [](auto&, auto& facts) { facts.endpoint->found.addresses.clear(); }},
      {"FAIL endpoint: looking up node01 takes too long — check the servers in /etc/resolv.conf, "
       "or "
       "put node01 into /etc/hosts\n",
       [](auto&, auto& facts) { facts.endpoint.reset(); }},
      {"FAIL endpoint: node01 is 10.77.0.1, and port 29500 cannot be reached: no answer — let "
       "port "
       "29500 through the firewall, or give all nodes the name of a node that is up\n",
       [](auto&, auto& facts) {
         facts.endpoint->is_here = false;
         facts.endpoint->probe = ProbeResult::kSilent;
         facts.endpoint->error = "no answer";
       }},
      {"FAIL port: 29500 is taken by pid 7 (nginx) — end that program, or give all nodes another "
       "port\n",
       [](auto& question, auto& facts) {
         question.served_port = 0;
         facts.endpoint->port_owner = "pid 7 (nginx)";
       }},
      {"FAIL IPv6: off, and a name has no other address than fd00::1 — `sysctl "
       "net.ipv6.conf.all.disable_ipv6=0`, or give it an IPv4 address in /etc/hosts\n",
       [](auto&, auto& facts) {
         facts.has_ipv6 = false;
         facts.own_name->addresses = {"fd00::1"};
       }},
      {"FAIL port: 29500 is taken by pid 7 (python3) — end that program, or give all nodes "
       "another "
       "port\n",
       [](auto&, auto& facts) { facts.port_owner = "pid 7 (python3)"; }},
      {"warn orphans: 3 processes of a job whose launcher is gone — `ddprun true` ends them, "
       "as "
       "each start does\n",
       [](auto&, auto& facts) { facts.orphans = 3; }},
  };
  for (const auto& [expected, plant] : cases) EXPECT_EQ(with(plant), expected);
}

TEST(Doctor, AsksNothingOfANodeThatTheJobDoesNotNeed) {
  EXPECT_EQ(with([](auto&, auto& facts) {
              facts.script->is_program = true;
              facts.python.reset();
              facts.infiniband.clear();
              facts.limits.locked_bytes = 8U << 20U;
            }),
            "");
  // A name that has an address of the other kind, too.
  EXPECT_EQ(with([](auto&, auto& facts) {
              facts.has_ipv6 = false;
              facts.own_name->addresses = {"10.77.0.1", "fd00::1"};
            }),
            "");
  // One node may be known to itself alone.
  EXPECT_EQ(with([](auto& question, auto& facts) {
              question.nodes = 1;
              facts.own_name->addresses = {"127.0.1.1"};
            }),
            "");
  EXPECT_EQ(
      with([](auto& question, auto&) { question.variables["NCCL_SOCKET_IFNAME"] = "^docker"; }),
      "");
  // Another node that is there, and serves its port or does not serve it yet.
  for (const ProbeResult probe : {ProbeResult::kAnswered, ProbeResult::kRefused}) {
    EXPECT_EQ(with([probe](auto& question, auto& facts) {
                question.served_port = 0;
                facts.endpoint->is_here = false;
                facts.endpoint->probe = probe;
              }),
              "");
  }
  // The rendezvous of the job may be here already.
  EXPECT_EQ(with([](auto& question, auto& facts) {
              question.served_port = 0;
              facts.endpoint->port_owner = "pid 7 (ddprun)";
            }),
            "");
  // Or a daemon's, which is not seen from here.
  EXPECT_EQ(with([](auto& question, auto& facts) {
              question.served_port = 0;
              question.may_serve_endpoint = false;
              facts.endpoint->port_owner = "another program";
            }),
            "");
}

TEST(Examination, ComesBackAsItWasWritten) {
  const Examination sent{
      .self = {.host_name = "n\xff", .torch = "2.11.0", .driver = "580.1"},
      .findings = {{Level::kOk, "a", "b"}, {Level::kFailure, "c", "d\xff", "e"}}};
  const std::string bytes = write_examination(sent);
  const auto got = read_examination(bytes);
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->self.host_name, sent.self.host_name);
  EXPECT_EQ(got->self.torch, sent.self.torch);
  EXPECT_EQ(got->self.driver, sent.self.driver);
  EXPECT_EQ(got->findings, sent.findings);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(read_examination(bytes.substr(0, size))) << size;
}

TEST(Findings, AreLinesAndJson) {
  const Findings found = {{Level::kOk, "a", "b"}, {Level::kFailure, "c", "d\xff", "e"}};
  EXPECT_EQ(text_of(found), "ok   a: b\nFAIL c: d� — e\n");
  EXPECT_EQ(text_of(found, "n"), "n: ok   a: b\nn: FAIL c: d� — e\n");
  EXPECT_EQ(
      json_of("n", found),
      R"({"host":"n","failed":true,"checks":[{"level":"ok","what":"a","fact":"b","remedy":""},)"
      R"({"level":"FAIL","what":"c","fact":"d\ufffd","remedy":"e"}]})"
      "\n");
}

}  // namespace
}  // namespace ddprun::launcher
