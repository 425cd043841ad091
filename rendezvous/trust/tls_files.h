// The PEM files of TLS, read and checked. They say who we are (certificate and key), and whose
// certificates we trust (an authority). A fault in them is said in one line with the file's name,
// and not by a handshake that fails. Blocking reads of small files; any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "base/pem.h"
#include "base/result.h"

namespace ddprun::rendezvous {

// Paths. Empty ones mean no TLS.
struct TlsFiles {
  std::string ca;
  std::string cert;  // the certificate, and those between it and the authority's
  std::string key;

  bool is_set() const { return !ca.empty(); }
  bool operator==(const TlsFiles&) const = default;
};

// The texts that were in them.
struct TlsTexts {
  std::string ca;
  std::string cert;
  std::string key;

  bool operator==(const TlsTexts&) const = default;
};

// Reads all three anew. All errors here are kInvalidArgument and begin with "tls_cert=FILE: ", as
// the user gave it in --rdzv-conf. Here: a file cannot be read or is no PEM, or others can read the
// key.
Result<TlsTexts> read_tls_files(const TlsFiles& files);

// Whether somebody with the same authority would take us for who we are. Errors: a certificate is
// not valid at `now`, the key is another one's, or tls_ca did not sign the certificate. `files` is
// for their messages.
Result<void> check_tls_texts(const TlsTexts& texts, const TlsFiles& files,
                             std::chrono::system_clock::time_point now);

// How often texts that did not change are checked again: they may have expired.
inline constexpr std::chrono::minutes kCheckEvery{1};

// check_tls_texts() for each connection. To parse the files costs as much as the handshake. So the
// texts that were found good last are only compared. One thread at a time.
class RepeatedCheck {
 public:
  Result<void> check(const TlsTexts& texts, const TlsFiles& files,
                     std::chrono::system_clock::time_point now);

 private:
  TlsTexts good_;
  std::chrono::system_clock::time_point checked_at_{};  // the clock's beginning: never
};

// Both, for the files as they are now. Nothing to check: no TLS.
Result<void> check_tls_files(const TlsFiles& files);

}  // namespace ddprun::rendezvous
