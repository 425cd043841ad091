#include "bench/tls_floor.h"

#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <ctime>
#include <memory>

#include "rendezvous/trust/openssl.h"

namespace ddprun::bench {
namespace {

using Context = std::unique_ptr<SSL_CTX, decltype(&::SSL_CTX_free)>;
using Side = std::unique_ptr<SSL, decltype(&::SSL_free)>;

// A handshake takes three flights; more turns than this mean that it failed.
constexpr int kMostTurns = 10;

Context context(const rendezvous::TlsFiles& files) {
  Context one(::SSL_CTX_new(::TLS_method()), &::SSL_CTX_free);
  const bool good =
      ::SSL_CTX_use_certificate_chain_file(one.get(), files.cert.c_str()) == 1 &&
      ::SSL_CTX_use_PrivateKey_file(one.get(), files.key.c_str(), SSL_FILETYPE_PEM) == 1 &&
      ::SSL_CTX_load_verify_locations(one.get(), files.ca.c_str(), nullptr) == 1;
  ::SSL_CTX_set_verify(one.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  if (!good) one.reset();
  return one;
}

bool shake_hands(SSL_CTX& node_context, SSL_CTX& host_context) {
  const Side node(::SSL_new(&node_context), &::SSL_free);
  const Side host(::SSL_new(&host_context), &::SSL_free);
  BIO* of_node = nullptr;
  BIO* of_host = nullptr;
  ::BIO_new_bio_pair(&of_node, 0, &of_host, 0);
  ::SSL_set_bio(node.get(), of_node, of_node);
  ::SSL_set_bio(host.get(), of_host, of_host);
  ::SSL_set_connect_state(node.get());
  ::SSL_set_accept_state(host.get());
  for (int turn = 0; turn < kMostTurns; ++turn) {
    const bool node_done = ::SSL_do_handshake(node.get()) == 1;
    if (::SSL_do_handshake(host.get()) == 1 && node_done) return true;
  }
  return false;
}

}  // namespace

double handshake_ms(const rendezvous::TlsFiles& files, int count) {
  rendezvous::set_up_openssl();
  const Context host = context(files);
  if (!host) return -1;
  const std::clock_t start = std::clock();
  for (int i = 0; i < count; ++i) {
    const Context node = context(files);
    if (!node || !shake_hands(*node, *host)) return -1;
  }
  return 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC / count;
}

}  // namespace ddprun::bench
