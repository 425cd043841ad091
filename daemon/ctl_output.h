// The output of ddpctl: tables for people, or JSON (tests/daemon/status.schema.json). Pure. Any
// thread.
#pragma once

#include <string>

#include "daemon/ctl_options.h"
#include "rendezvous/control/messages.h"

namespace ddprun::daemon {

// With a newline at its end. Empty if there is nothing to print.
std::string output(const CtlOptions& options, const rendezvous::ControlAnswer& answer);
// Returns the error, for stderr; empty where all is well.
std::string error_text(const CtlOptions& options, const rendezvous::ControlAnswer& answer);
CtlExit exit_code(const rendezvous::ControlAnswer& answer);

}  // namespace ddprun::daemon
