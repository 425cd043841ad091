// Certificates for tests: an authority, and what it signs, in files of a temporary folder.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "rendezvous/trust/openssl.h"
#include "rendezvous/trust/tls_files.h"

namespace ddprun::rendezvous {

struct PemPair {
  std::string cert;
  std::string key;
};

// The contents of a certificate; times are seconds from now.
struct CertificateTerms {
  std::string alternative_names = "IP:127.0.0.1";
  long from = -3600;
  long until = 3600;
  std::string key = "P-256";        // its kind: a curve's name, RSA or ED25519
  bool is_key_traditional = false;  // in PEM: as before PKCS #8
};

class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name = "test authority",
                         const std::string& kind_of_key = "P-256")
      : key_((set_up_openssl(), new_key(kind_of_key))), certificate_(::X509_new()) {
    fill(certificate_.get(), key_.get(), name, {});
    ::X509_set_issuer_name(certificate_.get(), ::X509_get_subject_name(certificate_.get()));
    extend(certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
    sign(certificate_.get());
  }

  std::string pem() const { return text_of(certificate_.get()); }

  PemPair issue(const CertificateTerms& terms = {}) const {
    const Key key = new_key(terms.key);
    const Certificate one(::X509_new());
    fill(one.get(), key.get(), "test", terms);
    ::X509_set_issuer_name(one.get(), ::X509_get_subject_name(certificate_.get()));
    extend(one.get(), NID_subject_alt_name, terms.alternative_names);
    sign(one.get());
    return {text_of(one.get()), text_of(key.get(), terms.is_key_traditional)};
  }

 private:
  struct Free {
    void operator()(EVP_PKEY* one) const { ::EVP_PKEY_free(one); }
    void operator()(X509* one) const { ::X509_free(one); }
    void operator()(BIO* one) const { ::BIO_free(one); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  static Key new_key(const std::string& kind) {
    if (kind == "RSA") return Key(EVP_RSA_gen(2048));
    if (kind == "ED25519") return Key(::EVP_PKEY_Q_keygen(nullptr, nullptr, kind.c_str()));
    return Key(EVP_EC_gen(kind.c_str()));
  }

  // Ed25519 has a digest of its own.
  void sign(X509* one) const {
    const bool takes_digest = ::EVP_PKEY_is_a(key_.get(), "ED25519") == 0;
    ::X509_sign(one, key_.get(), takes_digest ? ::EVP_sha256() : nullptr);
  }

  static void fill(X509* one, EVP_PKEY* key, const std::string& name,
                   const CertificateTerms& terms) {
    static long serial = 0;
    ::X509_set_version(one, X509_VERSION_3);
    ::ASN1_INTEGER_set(::X509_get_serialNumber(one), ++serial);
    ::X509_gmtime_adj(::X509_getm_notBefore(one), terms.from);
    ::X509_gmtime_adj(::X509_getm_notAfter(one), terms.until);
    ::X509_NAME_add_entry_by_txt(::X509_get_subject_name(one), "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    ::X509_set_pubkey(one, key);
  }
  static void extend(X509* one, int kind, const std::string& value) {
    X509_EXTENSION* const extension = ::X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str());
    ::X509_add_ext(one, extension, -1);
    ::X509_EXTENSION_free(extension);
  }
  static std::string text_of(BIO* bio) {
    char* bytes = nullptr;
    const long count = BIO_get_mem_data(bio, &bytes);
    return {bytes, static_cast<std::size_t>(count)};
  }
  static std::string text_of(X509* one) {
    const std::unique_ptr<BIO, Free> bio(::BIO_new(::BIO_s_mem()));
    ::PEM_write_bio_X509(bio.get(), one);
    return text_of(bio.get());
  }
  static std::string text_of(EVP_PKEY* key, bool is_traditional) {
    const std::unique_ptr<BIO, Free> bio(::BIO_new(::BIO_s_mem()));
    const auto write =
        is_traditional ? ::PEM_write_bio_PrivateKey_traditional : ::PEM_write_bio_PrivateKey;
    write(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
    return text_of(bio.get());
  }

  const Key key_;
  const Certificate certificate_;
};

// A folder for files, removed at its end.
class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ddprun_tls_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() { std::filesystem::remove_all(path_); }

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    std::filesystem::permissions(path(name), std::filesystem::perms(0600));
    return path(name);
  }
  // The files of one side, whose names begin with `name`.
  TlsFiles write(const std::string& name, const std::string& ca, const PemPair& pair) const {
    return {write(name + "-ca.pem", ca), write(name + "-cert.pem", pair.cert),
            write(name + "-key.pem", pair.key)};
  }

 private:
  std::string path_;
};

}  // namespace ddprun::rendezvous
