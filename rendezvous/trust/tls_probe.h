// Why a host cannot be reached by TLS. gRPC tells only that a handshake failed. This tries one of
// its own and says the fault: whose certificate, and why. It connects, shakes hands, waits for the
// host's first byte, and hangs up. Loop's thread.
#pragma once

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "rendezvous/trust/tls_files.h"

namespace ddprun::rendezvous {

// The whole probe takes no longer.
inline constexpr std::chrono::seconds kProbeLimit{3};

// The last answer of a host without TLS before it closes the connection. It is the fatal alert
// protocol_version (RFC 8446, section 6). A connection that only ends does not tell why.
inline constexpr std::array<unsigned char, 7> kNoTlsAlert = {0x15, 3, 3, 0, 2, 2, 70};

struct ProbeTarget {
  std::string address;  // numeric
  std::uint16_t port = 0;
  std::string name;  // that the host's certificate must bear, or its address
  TlsFiles files;    // ours
};

// The fault that a probe found. The text is empty if TLS is not what is wrong, as far as we see.
struct TlsProblem {
  std::string text{};
  bool takes_no_tls = false;  // the host speaks another protocol at this port
};

// `done` is called once, from the loop.
void probe_tls(const boost::asio::any_io_executor& loop, const ProbeTarget& target,
               std::function<void(const TlsProblem& problem)> done);

}  // namespace ddprun::rendezvous
