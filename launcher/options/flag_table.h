// Every flag in one table: those of torchrun 2.11 and 2.15, then ddprun's own. Each has its name,
// PET_ variable, kind, default and help. The parser, --help and shell completion all read this
// table. So a flag cannot be known to one and unknown to another. No logic here. Constant; any
// thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ddprun::launcher {

enum class FlagId {
  kNnodes,
  kNprocPerNode,
  kRdzvBackend,
  kRdzvEndpoint,
  kRdzvId,
  kRdzvConf,
  kStandalone,
  kMaxRestarts,
  kMonitorInterval,
  kStartMethod,
  kEventLogHandler,
  kRole,
  kModule,
  kNoPython,
  kRunPath,
  kLogDir,
  kRedirects,
  kTee,
  kLocalRanksFilter,
  kDuplicateStdoutFilters,
  kDuplicateStderrFilters,
  kNodeRank,
  kMasterAddr,
  kMasterPort,
  kLocalAddr,
  kLogsSpecs,
  kNumaBinding,
  kSignalsToHandle,
  kVirtualLocalRank,
  kShutdownTimeout,
  kLogLinePrefixTemplate,
  kPrintCompletion,
  kHelp,
  kErrorReport,
  kExitMap,
  kExitEndsJob,
  kExitRestarts,
  kExitExcludesNode,
  kStrikes,
  kStrikeHalfLife,
  kStrikeFile,
  kDeviceTimeout,
  kSignalMap,
  kExitCodes,
  kRestartWindow,
  kRestartBackoff,
  kMaxRestartsWithoutProgress,
  kProgress,
  kNodeUnit,
  kTeardownTimeout,
  kOnHang,
  kPreemptSignal,
  kPreemptFile,
  kPreemptDeadline,
  kExitPreempted,
  kCheckReplicas,
  kStandby,
  kPythonHook,
  kShareImports,
  kFold,
  kQuiet,
  kHttp,
  kCheck,
  kLocalRank,
  kUseEnv,
  kVersion,
};

// kSwitch takes no value: it is on or off.
enum class FlagKind { kValue, kSwitch };

// The program that a flag comes from. Only torchrun's flags can be abbreviated. A prefix that is
// unique with torchrun must stay unique here. So ddprun's own flags must not take part.
enum class FlagOwner { kTorchrun, kDdprun };

struct Flag {
  FlagId id;
  // With dashes, without the two in front. The form with underscores is made from it.
  std::string_view name;
  char letter = 0;  // the short form, or 0
  FlagKind kind = FlagKind::kValue;
  FlagOwner owner = FlagOwner::kTorchrun;
  bool from_environment = true;  // has a PET_ variable
  std::string_view standard{};   // the default, as text; switches: "0"
  // For --help. Between its bars, a word in small letters is a value to be typed like that. Shell
  // completion offers these words, and some flags accept no others.
  std::string_view metavar{};
  std::string_view help{};
};

// The whole table, in the order of --help.
std::span<const Flag> flag_table();

// Every FlagId has a row (asserted).
const Flag& flag_of(FlagId id);

// torchrun's rule (torch/distributed/argparse_util.py): `PET_NPROC_PER_NODE` for `nproc-per-node`.
std::string pet_variable(const Flag& flag);

}  // namespace ddprun::launcher
