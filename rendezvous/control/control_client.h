// Asks a rendezvous, as an operator: one question over a connection of its own. It blocks, so it is
// for programs that do nothing else (ddpctl). Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/control/messages.h"
#include "rendezvous/trust/node_handshake.h"
#include "rendezvous/trust/tls_files.h"

namespace ddprun::rendezvous {

struct ControlTarget {
  std::string host;                    // as the user named it: with TLS, its certificate bears it
  std::vector<std::string> addresses;  // numeric; tried in this order
  std::uint16_t port = 0;
  CallerToken token{};
  // A connection to the socket of the rendezvous on this host, instead of `addresses` and `port`;
  // -1: none. It belongs to ask() from then on.
  int local = -1;
  TlsFiles tls{};  // not set: no TLS
  // An address that is not reached is an error before ddpctl says for the first time that it waits.
  std::chrono::milliseconds connect_limit{4'500};
  std::chrono::milliseconds answer_limit{10'000};
};

// With AwaitEnd the answer is kStillRunning where the job runs on at the end of `answer_limit`. A
// server that cannot be reached, or says nothing, is kUnreachable. One that wants TLS, or takes no
// certificate of ours, is kTls; one that has no TLS is kNoTls.
ControlAnswer ask(const ControlTarget& target, const ControlQuestion& question);

}  // namespace ddprun::rendezvous
