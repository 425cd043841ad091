#include "launcher/options/flag_table.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/assert.h"

namespace ddprun::launcher {
namespace {

constexpr auto kValue = FlagKind::kValue;
constexpr auto kSwitch = FlagKind::kSwitch;
constexpr auto kTorchrun = FlagOwner::kTorchrun;
constexpr auto kOwn = FlagOwner::kDdprun;
// Whether a flag has a PET_ variable. Some of torchrun's have none.
constexpr bool kPet = true;
constexpr bool kNoPet = false;

// clang-format off
constexpr std::array kTable = {
  Flag{FlagId::kNnodes, "nnodes", 0, kValue, kTorchrun, kPet, "1:1", "N", "number of nodes"},
  Flag{FlagId::kNprocPerNode, "nproc-per-node", 0, kValue, kTorchrun, kPet, "1",
       "N|cpu|gpu|auto|xpu|npu|hpu", "workers on this node"},
  Flag{FlagId::kStandalone, "standalone", 0, kSwitch, kTorchrun, kPet, "0", "",
       "one node, any free port, an id of its own"},
  Flag{FlagId::kRdzvBackend, "rdzv-backend", 0, kValue, kTorchrun, kPet, "static",
       "static|c10d|etcd", "how nodes meet"},
  Flag{FlagId::kRdzvEndpoint, "rdzv-endpoint", 0, kValue, kTorchrun, kPet, "", "HOST[:PORT]",
       "where nodes meet; port 29400 for c10d; etcd: all of its members"},
  Flag{FlagId::kRdzvId, "rdzv-id", 0, kValue, kTorchrun, kPet, "none", "ID",
       "the job's id, the same on all nodes"},
  Flag{FlagId::kRdzvConf, "rdzv-conf", 0, kValue, kTorchrun, kPet, "", "K=V,…",
       "c10d, etcd: join_timeout, last_call_timeout, …; static: timeout"},
  Flag{FlagId::kNodeRank, "node-rank", 0, kValue, kTorchrun, kPet, "0", "R",
       "this node's rank (c10d: preferred, not guaranteed)"},
  Flag{FlagId::kMasterAddr, "master-addr", 0, kValue, kTorchrun, kPet, "127.0.0.1", "HOST",
       "address of node rank 0 (static)"},
  Flag{FlagId::kMasterPort, "master-port", 0, kValue, kTorchrun, kPet, "", "PORT",
       "its port (static); one node: any free port, else 29500"},
  Flag{FlagId::kLocalAddr, "local-addr", 0, kValue, kTorchrun, kPet, "", "HOST",
       "this node's address for its peers"},
  Flag{FlagId::kMaxRestarts, "max-restarts", 0, kValue, kTorchrun, kPet, "0", "N",
       "restarts of the workers before the job fails"},
  Flag{FlagId::kShutdownTimeout, "shutdown-timeout", 0, kValue, kTorchrun, kPet, "30", "S",
       "seconds from the closing signal to SIGKILL"},
  Flag{FlagId::kSignalsToHandle, "signals-to-handle", 0, kValue, kTorchrun, kPet,
       "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "NAMES", "signals that end the job"},
  Flag{FlagId::kMonitorInterval, "monitor-interval", 0, kValue, kTorchrun, kPet, "0.1", "S",
       "accepted; exits are seen at once"},
  Flag{FlagId::kModule, "module", 'm', kSwitch, kTorchrun, kPet, "0", "",
       "SCRIPT is a Python module"},
  Flag{FlagId::kNoPython, "no-python", 0, kSwitch, kTorchrun, kPet, "0", "", "SCRIPT is a program"},
  Flag{FlagId::kRunPath, "run-path", 0, kSwitch, kTorchrun, kPet, "0", "",
       "run SCRIPT by Python's runpy"},
  Flag{FlagId::kVirtualLocalRank, "virtual-local-rank", 0, kSwitch, kTorchrun, kPet, "0", "",
       "LOCAL_RANK=0 and one visible GPU for each worker"},
  Flag{FlagId::kNumaBinding, "numa-binding", 0, kValue, kTorchrun, kNoPet, "",
       "node|socket|exclusive|core-complex", "CPUs near each worker's GPU"},
  Flag{FlagId::kRole, "role", 0, kValue, kTorchrun, kPet, "default", "NAME", "the workers' role"},
  Flag{FlagId::kLogDir, "log-dir", 0, kValue, kTorchrun, kPet, "", "DIR",
       "log root; /dev/null: no files"},
  Flag{FlagId::kRedirects, "redirects", 'r', kValue, kTorchrun, kPet, "0", "SPEC",
       "streams to files: 0, 1 out, 2 err, 3 both, or 0:1,1:3"},
  Flag{FlagId::kTee, "tee", 't', kValue, kTorchrun, kPet, "0", "SPEC",
       "streams to files and console"},
  Flag{FlagId::kLocalRanksFilter, "local-ranks-filter", 0, kValue, kTorchrun, kPet, "", "0,2,…",
       "local ranks shown on the console"},
  Flag{FlagId::kDuplicateStdoutFilters, "duplicate-stdout-filters", 0, kValue, kTorchrun, kPet, "",
       "TEXT,…", "tee'd lines with such a text also go to filtered_stdout.log"},
  Flag{FlagId::kDuplicateStderrFilters, "duplicate-stderr-filters", 0, kValue, kTorchrun, kPet, "",
       "TEXT,…", "the same for stderr; `,,` is a comma"},
  Flag{FlagId::kLogLinePrefixTemplate, "log-line-prefix-template", 0, kValue, kTorchrun, kPet,
       "[${role_name}${local_rank}]:", "TEXT", "also ${rank}, ${hostname}, ${restart}"},
  Flag{FlagId::kEventLogHandler, "event-log-handler", 0, kValue, kTorchrun, kPet, "null",
       "null|console", "console: JSON events on stderr"},
  Flag{FlagId::kStartMethod, "start-method", 0, kValue, kTorchrun, kPet, "spawn",
       "spawn|fork|forkserver", "accepted; workers are always fresh processes"},
  Flag{FlagId::kLogsSpecs, "logs-specs", 0, kValue, kTorchrun, kNoPet, "", "NAME",
       "default; others are refused: plugins are Python"},
  Flag{FlagId::kPrintCompletion, "print-completion", 0, kValue, kTorchrun, kNoPet, "",
       "bash|zsh|tcsh|fish", "print a completion script for this shell"},
  Flag{FlagId::kHelp, "help", 'h', kSwitch, kTorchrun, kNoPet, "0", "", "print this"},
  Flag{FlagId::kErrorReport, "error-report", 0, kValue, kOwn, kPet, "", "FILE",
       "the failure report as JSON"},
  Flag{FlagId::kExitCodes, "exit-codes", 0, kValue, kOwn, kPet, "torchrun", "torchrun|detailed",
       "detailed: the root cause's own code, and others"},
  Flag{FlagId::kExitMap, "exit-map", 0, kValue, kOwn, kPet, "", "FILE|KEY:CODE,…",
       "exit codes by the reason for which the job ended"},
  Flag{FlagId::kExitEndsJob, "exit-ends-job", 0, kValue, kOwn, kPet, "", "CODE,…",
       "a worker with such an exit code ends the job, no restart follows"},
  Flag{FlagId::kExitRestarts, "exit-restarts", 0, kValue, kOwn, kPet, "", "CODE,…",
       "a worker with such an exit code, 0 as well, is a failure"},
  Flag{FlagId::kExitExcludesNode, "exit-excludes-node", 0, kValue, kOwn, kPet, "", "CODE,…",
       "a worker with such an exit code is a strike of its node"},
  Flag{FlagId::kStrikes, "strikes", 0, kValue, kOwn, kPet, "0", "N",
       "after N failures of its own a node sits out; 0: never"},
  Flag{FlagId::kStrikeHalfLife, "strike-half-life", 0, kValue, kOwn, kPet, "3600", "S",
       "a strike counts half after S seconds"},
  Flag{FlagId::kStrikeFile, "strike-file", 0, kValue, kOwn, kPet, "", "FILE",
       "carries strikes to the next job"},
  Flag{FlagId::kDeviceTimeout, "device-timeout", 0, kValue, kOwn, kPet, "30", "S",
       "a restart waits so long for devices that others hold; 0: off"},
  Flag{FlagId::kSignalMap, "signal-map", 0, kValue, kOwn, kPet, "", "USR1=TERM,…",
       "take one signal for another"},
  Flag{FlagId::kRestartWindow, "restart-window", 0, kValue, kOwn, kPet, "0", "S",
       "--max-restarts counts over any S seconds; 0: over the job"},
  Flag{FlagId::kRestartBackoff, "restart-backoff", 0, kValue, kOwn, kPet, "", "S[:MAX]",
       "wait before the second restart in a row; with a window 1:60"},
  Flag{FlagId::kMaxRestartsWithoutProgress, "max-restarts-without-progress", 0, kValue, kOwn, kPet,
       "3", "N", "end after N attempts that got no further; else 3 are shown; 0: off"},
  Flag{FlagId::kProgress, "progress", 0, kValue, kOwn, kPet, "", "FILE",
       "the program writes its step there, for the flag above"},
  Flag{FlagId::kNodeUnit, "node-unit", 0, kValue, kOwn, kPet, "1", "K",
       "with --nnodes=MIN:MAX: every round has a multiple of K nodes"},
  Flag{FlagId::kTeardownTimeout, "teardown-timeout", 0, kValue, kOwn, kPet, "15", "S",
       "a worker that recorded an error and lives on fails then; 0: off"},
  Flag{FlagId::kOnHang, "on-hang", 0, kValue, kOwn, kPet, "report", "report|restart|end|off",
       "if ranks stand still: say who and where, or act on it"},
  Flag{FlagId::kPreemptSignal, "preempt-signal", 0, kValue, kOwn, kPet, "", "SIGTERM,…",
       "a signal that gives notice: all ranks save after one step, and end"},
  Flag{FlagId::kPreemptFile, "preempt-file", 0, kValue, kOwn, kPet, "", "FILE",
       "a file that gives notice when it appears or changes"},
  Flag{FlagId::kPreemptDeadline, "preempt-deadline", 0, kValue, kOwn, kPet, "", "S",
       "from a notice to SIGKILL; by default the --shutdown-timeout"},
  Flag{FlagId::kExitPreempted, "exit-preempted", 0, kValue, kOwn, kPet, "", "CODE",
       "the exit code of a job that was told to end"},
  Flag{FlagId::kCheckReplicas, "check-replicas", 0, kValue, kOwn, kPet, "0", "STEPS",
       "compare what DDP keeps equal every STEPS optimizer steps; 0: off"},
  Flag{FlagId::kStandby, "standby", 0, kValue, kOwn, kPet, "auto", "auto|0|1",
       "workers that wait for a restart; 1: also if memory is short"},
  Flag{FlagId::kPythonHook, "python-hook", 0, kValue, kOwn, kPet, "1", "0|1",
       "0: no step counts and no standbys of Python workers"},
  Flag{FlagId::kShareImports, "share-imports", 0, kValue, kOwn, kPet, "auto", "auto|0|1",
       "Python workers of a node share one import; 1: of every script"},
  Flag{FlagId::kFold, "fold", 0, kSwitch, kOwn, kPet, "0", "",
       "show equal lines of several ranks once"},
  Flag{FlagId::kQuiet, "quiet", 0, kSwitch, kOwn, kPet, "0", "",
       "no line of ddprun's own but errors"},
  Flag{FlagId::kHttp, "http", 0, kValue, kOwn, kPet, "", "[ADDRESS]:PORT",
       "metrics and a status page; without an address for this host only"},
  Flag{FlagId::kCheck, "check", 0, kSwitch, kOwn, kPet, "0", "",
       "look at this node first, as `ddprun doctor` does; a FAIL ends it"},
  Flag{FlagId::kLocalRank, "local-rank", 0, kSwitch, kOwn, kPet, "0", "",
       "hand SCRIPT --local-rank=K, as torch.distributed.launch does"},
  Flag{FlagId::kUseEnv, "use-env", 0, kSwitch, kOwn, kPet, "0", "",
       "hand it no --local-rank; LOCAL_RANK is set in any case"},
  Flag{FlagId::kVersion, "version", 0, kSwitch, kOwn, kNoPet, "0", "", "print the version"},
};
// clang-format on

}  // namespace

std::span<const Flag> flag_table() { return kTable; }

const Flag& flag_of(FlagId id) {
  const auto* found =
      std::find_if(kTable.begin(), kTable.end(), [id](const Flag& flag) { return flag.id == id; });
  DDPRUN_ASSERT(found != kTable.end());
  return *found;
}

std::string pet_variable(const Flag& flag) {
  std::string variable = "PET_";
  for (const char c : flag.name) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

}  // namespace ddprun::launcher
