// Tells systemd how a service does: one datagram to the socket that NOTIFY_SOCKET names
// (sd_notify(3)). Without that variable nothing happens. Any thread.
#pragma once

#include <string>

namespace ddprun::daemon {

// `state` is "READY=1" or "STOPPING=1". `socket`: the variable's value; empty: none. False if it
// could not be told.
bool tell_service_manager(const std::string& socket, const std::string& state);

}  // namespace ddprun::daemon
