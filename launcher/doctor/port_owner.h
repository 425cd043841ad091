// Finds the process that has a TCP port of this node. Looks at /proc; main thread, at start.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun::launcher {

// `pid 4711 (python3)`, or `another program` where that is not to be seen. Empty if nobody has it,
// or if we may not bind it for another reason.
std::string port_owner(std::uint16_t port);

}  // namespace ddprun::launcher
