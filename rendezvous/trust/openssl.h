// OpenSSL as this program may use it.
#pragma once

namespace ddprun::rendezvous {

// Before anything else of OpenSSL and gRPC; further calls do nothing. No configuration file of the
// machine may load a module into a program that is linked statically. The first call of OpenSSL in
// the process decides it, and gRPC makes some (OPENSSL_init_crypto(3)). gRPC makes the connections
// itself. So settings without an option of gRPC are set here for every one (openssl.cc). So are the
// algorithms (cipher_list.h).
void set_up_openssl();

}  // namespace ddprun::rendezvous
