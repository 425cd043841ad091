// The command line of ddpctl. Pure: words and variables in, what to ask out. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "proto/worker_env.h"
#include "rendezvous/control/messages.h"
#include "rendezvous/trust/tls_files.h"

namespace ddprun::daemon {

// ddpctl's exit codes (docs/operators.md).
enum CtlExit : int {
  kCtlDone = 0,
  kCtlFailed = 1,  // `wait`: the job failed; otherwise: it was understood and refused
  kCtlUsage = 2,
  kCtlUnreachable = 3,
  kCtlUnknown = 4,
  kCtlWrongToken = 5,
};

enum class CtlCommand {
  kJobs,
  kStatus,
  kNodes,
  kDrain,
  kResize,
  kStop,
  kWait,
  kStacks,
  kTop,
  kForgive,
  kCheckpoint
};

struct CtlEndpoint {
  std::string host;
  std::uint16_t port = 0;

  bool operator==(const CtlEndpoint&) const = default;
};

struct CtlOptions {
  CtlCommand command = CtlCommand::kJobs;
  // The daemons are asked in turn, since one of several leads. None: this user's jobs on this host
  // are asked (ctl_local.h).
  std::vector<CtlEndpoint> endpoints;
  std::string token_file;  // empty: none
  rendezvous::TlsFiles tls{};
  bool json = false;
  rendezvous::ControlQuestion question;
};

struct CtlAnswer {
  std::string text;  // --help, --version
};
struct CtlUsageError {
  std::string message;
};

std::variant<CtlOptions, CtlAnswer, CtlUsageError> parse_ctl(const std::vector<std::string>& words,
                                                             const EnvLookup& env);

}  // namespace ddprun::daemon
