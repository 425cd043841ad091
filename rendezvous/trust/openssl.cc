#include "rendezvous/trust/openssl.h"

#include <openssl/bio.h>
#include <openssl/conf.h>
#include <openssl/crypto.h>
#include <openssl/err.h>

namespace ddprun::rendezvous {
namespace {

// gRPC makes the contexts itself and has no option for it; what stands under system_default is
// applied to all of them (config(5), SSL_CONF_cmd(3)).
constexpr const char* kNoTickets =
    "openssl_conf = program\n"
    "[program]\nssl_conf = contexts\n"
    "[contexts]\nsystem_default = context\n"
    "[context]\nNumTickets = 0\n";

bool configure() {
  ::OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  BIO* const text = ::BIO_new_mem_buf(kNoTickets, -1);
  CONF* const configuration = ::NCONF_new(nullptr);
  long line = 0;
  const bool done = ::NCONF_load_bio(configuration, text, &line) == 1 &&
                    ::CONF_modules_load(configuration, nullptr, 0) == 1;
  ::NCONF_free(configuration);
  ::BIO_free(text);
  ::ERR_clear_error();
  return done;
}

}  // namespace

// If it cannot be set, tickets only cost time.
void set_up_openssl() { [[maybe_unused]] static const bool done = configure(); }

}  // namespace ddprun::rendezvous
