// Every flag of torchrun 2.11 and 2.15, in one table: name, PET_ variable, kind, default, help, and
// whether it is built. Parser,
// --help and the refusals read this table, so a flag cannot be in one and not in another. No logic
// here.
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
  kVersion,
};

enum class FlagKind { kValue, kSwitch };

enum class FlagStatus {
  kBuilt,
  kRefused,  // known to torchrun, not built yet: only its default value passes
};

struct Flag {
  FlagId id;
  std::string_view
      name;         // with dashes, without the leading two; the underscore form is made from it
  char letter = 0;  // the short form, or 0
  FlagKind kind = FlagKind::kValue;
  FlagStatus status = FlagStatus::kBuilt;
  bool from_environment = true;  // has a PET_ variable
  std::string_view standard{};   // the default, as text
  std::string_view metavar{};    // for --help
  std::string_view help{};
};

// The whole table, in the order of --help.
std::span<const Flag> flag_table();

const Flag& flag_of(FlagId id);

// `PET_NPROC_PER_NODE` for `nproc-per-node`.
std::string pet_variable(const Flag& flag);

// The text of --help.
std::string help_text();

}  // namespace ddprun::launcher
