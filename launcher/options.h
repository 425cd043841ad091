// ddprun's command line: argv and environment in, Options out. One table (flag_table.h) lists every
// flag; a value that is not built yet is refused by name and never ignored. Pure: environment,
// host and randomness come in as functions; no file is touched, nothing is printed. Runs on the
// main thread before anything else is started.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "agent/core/config.h"
#include "launcher/flag_values.h"
#include "launcher/numa.h"
#include "proto/log.h"
#include "proto/worker_env.h"

namespace ddprun::launcher {

// How nodes find each other.
enum class Rendezvous {
  kLocal,  // one node, in this process; nothing listens for it and the store takes any free port
  // Node ranks and the master's address are given; `endpoint` is the master, its port is set.
  kStatic,
  kC10d,  // dynamic, at `endpoint`, its port is set
};

// What SCRIPT is.
enum class Mode {
  kScript,   // a file: Python, or a program of its own where its first bytes say so (command.h)
  kModule,   // -m: a Python module
  kProgram,  // --no-python: a program, looked up on PATH where its name has no slash
  kRunPath,  // --run-path: a Python file, run by runpy
};

// A valid command line. Values not given have torchrun's defaults.
struct Options {
  NodeCount nodes{};         // min == max until elastic node counts are built
  int workers_per_node = 1;  // 1 … kMaxWorkersPerNode; words such as `cpu` are numbers by now
  Rendezvous rendezvous = Rendezvous::kLocal;
  bool standalone = false;  // asked for by flag; `rendezvous` is then kLocal
  Endpoint endpoint{};      // kStatic, kC10d: host and port; kLocal: empty
  std::string run_id = "none";
  RendezvousConf rendezvous_conf{};
  int node_rank = 0;                        // kStatic: 0 … nodes.max-1; otherwise without effect
  std::optional<std::string> local_addr{};  // --local-addr: this node's address for its peers

  agent::RestartPlan restarts{};
  std::chrono::milliseconds monitor_interval{
      100};  // checked, without effect: worker exits are events here
  std::chrono::seconds shutdown_timeout{30};  // grace between the closing signal and SIGKILL
  agent::SignalPlan signals{};

  std::string role = "default";
  std::optional<std::string> log_dir{};  // nothing: a fresh temporary folder; "/dev/null": no files
  StdSpec redirects{};                   // streams that go to files only
  StdSpec tees{};                        // streams that go to files and console
  std::optional<std::set<int>> shown_ranks{};  // local ranks for the console; nothing: all
  agent::OutputPlan output{};
  bool quiet = false;           // no line of ours but errors
  bool console_events = false;  // --event-log-handler=console
  std::string error_report{};   // file for the report as JSON; empty: none
  std::string error_file{};     // TORCHELASTIC_ERROR_FILE; empty: none
  bool detailed_exit_codes = false;
  agent::WatchPlan watch{};
  std::vector<std::string> virtual_devices{};  // one a local rank; empty: no virtual local ranks
  std::optional<NumaMode> numa_binding{};

  Mode mode = Mode::kScript;
  bool local_rank_argument = false;  // `--local-rank=K` goes before script_args
  std::string script;
  std::vector<std::string> script_args{};

  log::Level log_level = log::Level::kWarning;  // from LOGLEVEL
  std::vector<std::string> warnings{};          // one line each, to be logged by the caller
};

// The command line asked for words, not for a job: print `text` on stdout, exit 0.
struct Answer {
  std::string text;
};

// The command line is wrong: print `message` (one line, starts with `ddprun: `) on stderr and exit.
struct UsageError {
  // 2: argparse would have refused it, or it is not built yet; 1: a bad value that torchrun finds
  // later.
  int exit_code = 2;
  std::string message;
};

// What parse() asks about this host, and only when a flag needs it; and how ddprun was called.
struct HostFacts {
  std::function<int()> cpu_count;            // for `cpu`
  std::function<int()> gpu_count;            // visible CUDA devices, for `gpu` and `auto`
  std::function<std::string()> make_run_id;  // a fresh UUID, for --standalone
  // By the name ddprun-launch: torch.distributed.launch's habit, --local-rank unless --use-env.
  bool called_as_launch = false;
};

using Parsed = std::variant<Options, Answer, UsageError>;

// `args` is argv without the program's name. Never throws on bad input. Not for two threads at
// once: getopt_long keeps its place in globals (reset on every call).
Parsed parse(const std::vector<std::string>& args, const EnvLookup& env, const HostFacts& host);

}  // namespace ddprun::launcher
