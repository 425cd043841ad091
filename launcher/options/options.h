// ddprun's command line: argv and environment go in, Options come out. One table (flag_table.h)
// lists every flag. A value that is not built yet is refused by name and never ignored. Pure:
// environment, machine and randomness come in as functions; it touches no file and prints nothing.
// Main thread, before anything else is started.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/core/config.h"
#include "base/log.h"
#include "launcher/options/accelerators.h"
#include "launcher/options/flag_values.h"
#include "launcher/options/numa.h"
#include "launcher/scheduler/deadlines.h"
#include "launcher/scheduler/scheduler_facts.h"
#include "proto/worker_env.h"

namespace ddprun::launcher {

// The program's own name, and its name for lines that began with
// `python -m torch.distributed.launch`.
inline constexpr std::string_view kProgramName = "ddprun";
inline constexpr std::string_view kLaunchName = "ddprun-launch";

// How nodes find each other.
enum class Rendezvous {
  kLocal,  // one node: nothing listens for others, and the store takes any free port
  // Node ranks and the master's address are given. `endpoint` is the master, with a port.
  kStatic,
  kC10d,  // node ranks are found out at `endpoint`, which has a port
  kEtcd,  // as kC10d; who hosts is elected in the etcd of rendezvous_conf
};

// The kind of SCRIPT.
enum class Mode {
  kScript,   // a file: Python, or a program if its first bytes say so (command.h)
  kModule,   // -m: a Python module
  kProgram,  // --no-python: a program, looked up on PATH if its name has no slash
  kRunPath,  // --run-path: a Python file, run by runpy
};

// A valid command line. A flag that was not given has torchrun's default.
struct Options {
  NodeCount nodes{};         // min < max, an elastic job, not with kStatic
  int node_unit = 1;         // nodes.min and nodes.max are multiples of it
  int workers_per_node = 1;  // 1 … kMaxWorkersPerNode; words such as `cpu` are numbers by now
  Rendezvous rendezvous = Rendezvous::kLocal;
  bool standalone = false;  // --standalone was given; `rendezvous` is then kLocal
  Endpoint endpoint{};      // kStatic, kC10d: host and port; kLocal: empty
  int port_count = 1;  // kC10d: ports from the endpoint's on; the host takes the first free one
  std::string run_id = "none";
  RendezvousConf rendezvous_conf{};
  // kStatic: 0 … nodes.max-1. kC10d, kEtcd: preferred, -1: any. Else without effect.
  int node_rank = 0;
  std::optional<std::string> local_addr{};  // --local-addr: this node's address for its peers

  agent::RestartPlan restarts{};
  // Checked, without effect: nothing polls, since a worker's exit is an event here.
  std::chrono::milliseconds monitor_interval{100};
  std::chrono::seconds shutdown_timeout{30};  // grace: from the closing signal to SIGKILL
  agent::SignalPlan signals{};
  std::chrono::milliseconds teardown_timeout{15'000};  // from an error on record to SIGKILL; 0: off

  std::string role = "default";
  std::optional<std::string> log_dir{};  // nothing: a new temporary folder; "/dev/null": no files
  StdSpec redirects{};                   // streams that go to files only
  StdSpec tees{};                        // streams that go to files and console
  std::optional<std::set<int>> shown_ranks{};  // local ranks for the console; nothing: all
  agent::OutputPlan output{};
  bool quiet = false;           // no line of our own but errors
  bool console_events = false;  // --event-log-handler=console
  std::string error_report{};   // file for the report as JSON; empty: none
  std::string error_file{};     // TORCHELASTIC_ERROR_FILE; empty: none
  bool detailed_exit_codes = false;
  agent::ExitPlan exits{};
  std::chrono::milliseconds device_timeout{30'000};  // 0: no look at devices
  bool device_timeout_ends_job = false;              // it is given
  agent::OnHang on_hang = agent::OnHang::kReport;
  std::chrono::milliseconds preempt_deadline{30'000};  // from a notice to SIGKILL
  std::string preempt_file{};                          // empty: none
  std::optional<int> exit_preempted{};                 // nothing: as for any signal
  int check_replicas = 0;                              // every so many optimizer steps; 0: never
  agent::StandbyMode standby = agent::StandbyMode::kAuto;
  agent::SharedImports share_imports = agent::SharedImports::kAuto;
  bool python_hook = true;
  bool shares_store = true;  // agent::RendezvousPlan
  agent::WatchPlan watch{};
  std::optional<agent::HttpPlan> http{};        // nothing: not asked for
  std::vector<std::string> virtual_devices{};   // one for each local rank; empty: not asked for
  std::vector<std::string> device_variables{};  // in these, each worker has its own
  std::optional<NumaMode> numa_binding{};

  bool check = false;  // the doctor looks at this node first

  Mode mode = Mode::kScript;
  bool local_rank_argument = false;  // `--local-rank=K` goes before script_args
  std::string script;
  std::vector<std::string> script_args{};

  log::Level log_level = log::Level::kWarning;        // from LOGLEVEL
  std::vector<std::string> warnings{};                // one line each; the caller logs them
  std::vector<std::string> notices{};                 // one line each; the caller prints them
  std::optional<std::chrono::sys_seconds> ends_at{};  // when the scheduler ends the job
  std::string start_mark{};  // of this process, for its workers (scheduler/start_mark.h)
  int cpus_per_task = 0;     // as the scheduler gave them to this process; 0: it does not say
};

// The user asked for words and not for a job: print `text` on stdout and exit with 0.
struct Answer {
  std::string text;
};

// The command line is wrong. Print the program's name and `message` (one line) on stderr and exit
// with `exit_code`.
struct UsageError {
  // 2: argparse would refuse it, or it is not built yet. 1: torchrun finds the bad value later.
  int exit_code = 2;
  std::string message;
};

// The questions of parse() about this machine, each asked only if a flag needs it, and ddprun's own
// name.
struct HostFacts {
  std::function<int()> cpu_count;              // of the affinity mask, for `cpu`
  std::function<Accelerators()> accelerators;  // for `gpu`, `auto`, `xpu`, `npu` and `hpu`
  // A fresh UUID, for --standalone and for one node with an empty id.
  std::function<std::string()> make_run_id;
  // The name that ddprun was called by. Under kLaunchName scripts get --local-rank unless --use-env
  // is given, as with torch.distributed.launch.
  std::string called{kProgramName};
  // The same, cut by the cgroup's quota: for `cpu` under a scheduler.
  std::function<int()> allowed_cpu_count{};
  SchedulerInputs scheduler_inputs{};
  Ask ask{};  // only under Slurm
};

using ParseResult = std::variant<Options, Answer, UsageError>;

// `args` is argv without the program's name. Bad input is a UsageError, never an exception. Two
// threads must not call it at once: getopt_long keeps its place in globals, which each call resets.
ParseResult parse(const std::vector<std::string>& args, const EnvLookup& env,
                  const HostFacts& host);

}  // namespace ddprun::launcher
