// OpenSSL 3.0 looks through all the algorithms that it knows whenever it parses a key or a
// certificate. There are hundreds: that costs several times what the cryptography does. This offers
// it those alone with which gRPC's connections and users' certificates work.
#pragma once

namespace ddprun::rendezvous {

// Keys of certificates may be RSA, of elliptic curves (ECDSA), or Ed25519; ciphers are
// those of gRPC. All else of OpenSSL (digests, MACs, signatures, random numbers) stays as it is.
// Before OpenSSL is used, by one thread. False if all algorithms are there, as without it.
bool offer_cipher_list();

}  // namespace ddprun::rendezvous
