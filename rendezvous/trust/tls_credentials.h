// TLS for gRPC: both sides show a certificate, and believe those that tls_ca signed. The host reads
// its files anew for each connection, so a renewed certificate needs no restart. Used by service.cc
// and channel.cc.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <memory>

#include "rendezvous/trust/tls_files.h"

namespace ddprun::rendezvous {

std::shared_ptr<grpc::ChannelCredentials> client_credentials(TlsTexts texts);

// If new files are wrong, or those in use have expired, a warning says so once. Those of before
// stay in use. Any thread of gRPC may ask them.
std::shared_ptr<grpc::ServerCredentials> server_credentials(TlsFiles files);

// The acceptor of a server's connections that show certificates.
class TlsAcceptor {
 public:
  // Before the server starts. A peer that has not shown a certificate after `handshake_limit_ms` is
  // cut.
  TlsAcceptor(grpc::ServerBuilder& builder, TlsFiles files, int handshake_limit_ms);
  // The server owns `fd` from now on. Call it while the server runs.
  void adopt(int fd);

 private:
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
};

}  // namespace ddprun::rendezvous
