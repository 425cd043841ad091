// Every flag in one table: those of torchrun 2.11 and 2.15, then ddprun's own; each with name, PET_
// variable, kind, default and help. Parser, --help and shell completion read this table, so a flag
// cannot be in one and not in another. No logic here.
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
  kSignalMap,
  kExitCodes,
  kRestartWindow,
  kRestartBackoff,
  kFold,
  kQuiet,
  kLocalRank,
  kUseEnv,
  kVersion,
};

enum class FlagKind { kValue, kSwitch };

// Whose a flag is. Only torchrun's can be abbreviated: a prefix that was unique there must stay so.
enum class FlagOwner { kTorchrun, kDdprun };

struct Flag {
  FlagId id;
  // With dashes, without the leading two; the underscore form is made from it.
  std::string_view name;
  char letter = 0;  // the short form, or 0
  FlagKind kind = FlagKind::kValue;
  FlagOwner owner = FlagOwner::kTorchrun;
  bool from_environment = true;  // has a PET_ variable
  std::string_view standard{};   // the default, as text
  // For --help. Words in small letters between bars are values as they are typed, and completed.
  std::string_view metavar{};
  std::string_view help{};
};

// The whole table, in the order of --help.
std::span<const Flag> flag_table();

const Flag& flag_of(FlagId id);

// `PET_NPROC_PER_NODE` for `nproc-per-node`.
std::string pet_variable(const Flag& flag);

}  // namespace ddprun::launcher
