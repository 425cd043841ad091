#include "launcher/flag_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "proto/assert.h"

namespace ddprun::launcher {
namespace {

constexpr auto kValue = FlagKind::kValue;
constexpr auto kSwitch = FlagKind::kSwitch;
constexpr auto kBuilt = FlagStatus::kBuilt;
constexpr auto kRefused = FlagStatus::kRefused;
constexpr bool kPet = true;     // has a PET_ variable
constexpr bool kNoPet = false;  // as in torchrun, where these few have none

constexpr std::size_t kHelpColumns = 90;  // where --help begins a new line

// clang-format off
constexpr std::array kTable = {
  Flag{FlagId::kNnodes, "nnodes", 0, kValue, kBuilt, kPet, "1:1", "N", "number of nodes"},
  Flag{FlagId::kNprocPerNode, "nproc-per-node", 0, kValue, kBuilt, kPet, "1", "N|cpu|gpu|auto", "workers on this node"},
  Flag{FlagId::kStandalone, "standalone", 0, kSwitch, kBuilt, kPet, "0", "", "one node, any free port, an id of its own"},
  Flag{FlagId::kRdzvBackend, "rdzv-backend", 0, kValue, kBuilt, kPet, "static", "NAME", "how nodes meet: static or c10d"},
  Flag{FlagId::kRdzvEndpoint, "rdzv-endpoint", 0, kValue, kBuilt, kPet, "", "HOST[:PORT]", "where nodes meet; port 29400 for c10d"},
  Flag{FlagId::kRdzvId, "rdzv-id", 0, kValue, kBuilt, kPet, "none", "ID", "the job's id, the same on all nodes"},
  Flag{FlagId::kRdzvConf, "rdzv-conf", 0, kValue, kBuilt, kPet, "", "K=V,…", "join_timeout, last_call_timeout, read_timeout, timeout, is_host, …"},
  Flag{FlagId::kNodeRank, "node-rank", 0, kValue, kBuilt, kPet, "0", "R", "this node's rank (static)"},
  Flag{FlagId::kMasterAddr, "master-addr", 0, kValue, kBuilt, kPet, "127.0.0.1", "HOST", "address of node rank 0 (static)"},
  Flag{FlagId::kMasterPort, "master-port", 0, kValue, kBuilt, kPet, "", "PORT", "its port (static); one node: any free port, else 29500"},
  Flag{FlagId::kLocalAddr, "local-addr", 0, kValue, kBuilt, kPet, "", "HOST", "this node's address for its peers"},
  Flag{FlagId::kMaxRestarts, "max-restarts", 0, kValue, kBuilt, kPet, "0", "N", "restarts of the workers before the job fails"},
  Flag{FlagId::kShutdownTimeout, "shutdown-timeout", 0, kValue, kBuilt, kPet, "30", "S", "seconds from the closing signal to SIGKILL"},
  Flag{FlagId::kMonitorInterval, "monitor-interval", 0, kValue, kBuilt, kPet, "0.1", "S", "accepted; exits are seen at once"},
  Flag{FlagId::kModule, "module", 'm', kSwitch, kBuilt, kPet, "0", "", "SCRIPT is a Python module"},
  Flag{FlagId::kNoPython, "no-python", 0, kSwitch, kBuilt, kPet, "0", "", "SCRIPT is a program"},
  Flag{FlagId::kRunPath, "run-path", 0, kSwitch, kBuilt, kPet, "0", "", "run SCRIPT by Python's runpy"},
  Flag{FlagId::kRole, "role", 0, kValue, kBuilt, kPet, "default", "NAME", "the workers' role"},
  Flag{FlagId::kLogDir, "log-dir", 0, kValue, kBuilt, kPet, "", "DIR", "log root; /dev/null: no files"},
  Flag{FlagId::kRedirects, "redirects", 'r', kValue, kBuilt, kPet, "0", "SPEC", "streams to files: 0, 1 out, 2 err, 3 both, or 0:1,1:3"},
  Flag{FlagId::kTee, "tee", 't', kValue, kBuilt, kPet, "0", "SPEC", "streams to files and console"},
  Flag{FlagId::kStartMethod, "start-method", 0, kValue, kBuilt, kPet, "spawn", "NAME", "accepted: spawn, fork, forkserver"},
  Flag{FlagId::kEventLogHandler, "event-log-handler", 0, kValue, kRefused, kPet, "null", "NAME", ""},
  Flag{FlagId::kLocalRanksFilter, "local-ranks-filter", 0, kValue, kRefused, kPet, "", "RANKS", ""},
  Flag{FlagId::kDuplicateStdoutFilters, "duplicate-stdout-filters", 0, kValue, kRefused, kPet, "", "TEXTS", ""},
  Flag{FlagId::kDuplicateStderrFilters, "duplicate-stderr-filters", 0, kValue, kRefused, kPet, "", "TEXTS", ""},
  Flag{FlagId::kLogsSpecs, "logs-specs", 0, kValue, kRefused, kNoPet, "", "NAME", ""},
  Flag{FlagId::kNumaBinding, "numa-binding", 0, kValue, kRefused, kNoPet, "", "NAME", ""},
  Flag{FlagId::kSignalsToHandle, "signals-to-handle", 0, kValue, kRefused, kPet, "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "NAMES", ""},
  Flag{FlagId::kVirtualLocalRank, "virtual-local-rank", 0, kSwitch, kRefused, kPet, "0", "", ""},
  Flag{FlagId::kLogLinePrefixTemplate, "log-line-prefix-template", 0, kValue, kRefused, kPet, "[${role_name}${local_rank}]:", "TEXT", ""},
  Flag{FlagId::kPrintCompletion, "print-completion", 0, kValue, kRefused, kNoPet, "", "SHELL", ""},
  Flag{FlagId::kHelp, "help", 'h', kSwitch, kBuilt, kNoPet, "0", "", "print this"},
  Flag{FlagId::kVersion, "version", 0, kSwitch, kBuilt, kNoPet, "0", "", "print the version"},
};
// clang-format on

std::string left_column(const Flag& flag) {
  std::string left = flag.letter != 0 ? fmt::format("  -{}, ", flag.letter) : "      ";
  left += fmt::format("--{}", flag.name);
  if (flag.kind == FlagKind::kValue) left += fmt::format("={}", flag.metavar);
  return left;
}

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

std::string help_text() {
  std::string text =
      "usage: ddprun [options] SCRIPT [script arguments…]\n\n"
      "Starts SCRIPT in several worker processes, watches them, restarts them and leaves nothing\n"
      "behind. A drop-in for torchrun. Options end at SCRIPT. Every option can be written with\n"
      "underscores, and set by PET_ and its name (PET_NPROC_PER_NODE=2).\n\n";
  std::string refused;
  std::size_t line_columns = 0;
  for (const Flag& flag : kTable) {
    if (flag.status == FlagStatus::kRefused) {
      const bool wraps = line_columns + flag.name.size() > kHelpColumns;
      refused += fmt::format("{}--{}", wraps || refused.empty() ? "\n  " : " ", flag.name);
      line_columns = flag.name.size() + 3 + (wraps ? 0 : line_columns);
      continue;
    }
    text += fmt::format("{:<37} {}", left_column(flag), flag.help);
    const bool tell = flag.kind == FlagKind::kValue && !flag.standard.empty();
    text += tell ? fmt::format(" [{}]\n", flag.standard) : "\n";
  }
  return text + fmt::format("\nNot built yet, and refused:{}\n", refused);
}

}  // namespace ddprun::launcher
