// The least cost of TLS: handshakes of OpenSSL alone, both sides in memory, as gRPC makes them.
#pragma once

#include "rendezvous/trust/tls_files.h"

namespace ddprun::bench {

// Processor time of both sides of one handshake in which both show certificates, in milliseconds,
// the mean of `count`. As with gRPC 1.51 the node has a context of its own, whose files it parses
// once. Negative: the files are no good.
double handshake_ms(const rendezvous::TlsFiles& files, int count);

}  // namespace ddprun::bench
