#include "rendezvous/trust/openssl.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/objects.h>
#include <openssl/ssl.h>

#include <array>

#include "rendezvous/trust/cipher_list.h"
#include "rendezvous/trust/tls_channels.h"

namespace ddprun::rendezvous {
namespace {

// Best first. With gRPC alone it would be P-256 only, whose checks of the other side's key cost
// more.
constexpr std::array<int, 2> kPreferredGroups = {NID_X25519, NID_X9_62_prime256v1};

// A new connection, of gRPC or ours (CRYPTO_get_ex_new_index(3)).
// - It shows the certificates of tls_cert, and does not look in tls_ca for more: OpenSSL would
//   verify them each time, and the other side would parse its own authority once more.
// - A host gives out no tickets for later sessions, since every connection shows its certificates
//   anew.
// - Its name is kept (tls_channels.h).
// NOLINTNEXTLINE(readability-function-size): OpenSSL says which parameters
void connection_made(void* made, void* /*pointer*/, CRYPTO_EX_DATA* /*all*/, int /*index*/,
                     long /*number*/, void* /*argument*/) {
  auto* const connection = static_cast<SSL*>(made);
  SSL_set_mode(connection, SSL_MODE_NO_AUTO_CHAIN);
  SSL_set1_groups(connection, kPreferredGroups.data(), static_cast<int>(kPreferredGroups.size()));
  ::SSL_set_num_tickets(connection, 0);
  watch_channel(connection);
}

// NOLINTNEXTLINE(readability-function-size): OpenSSL says which parameters
void connection_ends(void* made, void* /*pointer*/, CRYPTO_EX_DATA* /*all*/, int /*index*/,
                     long /*number*/, void* /*argument*/) {
  forget_channel(static_cast<const SSL*>(made));
}

// If anything of it cannot be set, it only costs time.
bool configure() {
  // Nothing is cleaned up when the process ends: threads of gRPC may be at work then.
  ::OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr);
  const bool done = CRYPTO_get_ex_new_index(CRYPTO_EX_INDEX_SSL, 0, nullptr, connection_made,
                                            nullptr, connection_ends) >= 0 &&
                    offer_cipher_list();
  ::ERR_clear_error();
  return done;
}

}  // namespace

void set_up_openssl() { [[maybe_unused]] static const bool done = configure(); }

}  // namespace ddprun::rendezvous
