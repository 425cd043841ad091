// OpenSSL as this program may use it.
#pragma once

namespace ddprun::rendezvous {

// Before anything else of OpenSSL and gRPC; further calls do nothing. No configuration file of the
// machine may load a module into a program that is linked statically: the first call of OpenSSL in
// the process decides it, and gRPC makes some (OPENSSL_init_crypto(3)). gRPC makes the connections
// itself, so what it has no option for is set here for every one (openssl.cc), and which algorithms
// there are (fewer_algorithms.h).
void set_up_openssl();

}  // namespace ddprun::rendezvous
