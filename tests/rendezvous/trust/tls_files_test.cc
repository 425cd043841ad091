#include "rendezvous/trust/tls_files.h"

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <sys/stat.h>

#include <chrono>
#include <string>

#include "tests/rendezvous/trust/certificates.h"

namespace ddprun::rendezvous {
namespace {

struct TlsFilesTest : testing::Test {
  // Returns the error of the files. Empty if they are good.
  std::string problem(const TlsFiles& files,
                      std::chrono::hours from_now = std::chrono::hours(0)) const {
    const auto texts = read_tls_files(files);
    if (!texts) return texts.error().message();
    const auto checked =
        check_tls_texts(*texts, files, std::chrono::system_clock::now() + from_now);
    // The next handshake would take it for its own.
    EXPECT_EQ(::ERR_peek_error(), 0U);
    return checked ? "" : checked.error().message();
  }
  std::string problem_of(const PemPair& pair) const {
    return problem(folder.write("one", authority.pem(), pair));
  }
  std::string starts(const char* key, const char* file) const {
    return std::string(key) + "=" + folder.path(file) + ": ";
  }

  const TestAuthority authority;
  const TestFolder folder;
};

TEST_F(TlsFilesTest, TakeWhatFitsTogether) {
  EXPECT_EQ(problem_of(authority.issue()), "");
  const TlsFiles files = folder.write("one", authority.pem(), authority.issue());
  EXPECT_EQ(read_tls_files(files)->ca, authority.pem());
}

TEST_F(TlsFilesTest, TakeSeveralAuthorities) {
  const TestAuthority other("another authority");
  EXPECT_EQ(problem(folder.write("one", other.pem() + authority.pem(), authority.issue())), "");
}

TEST_F(TlsFilesTest, TakeTheUsualKindsOfKeys) {
  for (const char* kind : {"RSA", "P-256", "P-384", "P-521", "ED25519"}) {
    const TestAuthority own("authority", kind);
    EXPECT_EQ(problem(folder.write("one", own.pem(), own.issue({.key = kind}))), "") << kind;
  }
}

TEST_F(TlsFilesTest, TakeKeysInTheirTraditionalForm) {
  for (const char* kind : {"RSA", "P-256"}) {
    const PemPair pair = authority.issue({.key = kind, .is_key_traditional = true});
    EXPECT_EQ(pair.key.find("BEGIN PRIVATE KEY"), pair.key.npos) << kind;
    EXPECT_EQ(problem_of(pair), "") << kind;
  }
}

// As `openssl ecparam -genkey` writes it.
TEST_F(TlsFilesTest, TakeAKeyAfterTheNameOfItsCurve) {
  PemPair pair = authority.issue({.is_key_traditional = true});
  pair.key =
      "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n" + pair.key;
  EXPECT_EQ(problem_of(pair), "");
}

TEST_F(TlsFilesTest, AreMissing) {
  TlsFiles files = folder.write("one", authority.pem(), authority.issue());
  files.key = folder.path("nowhere.pem");
  EXPECT_EQ(problem(files), starts("tls_key", "nowhere.pem") +
                                "expected a readable PEM file: No such file or directory");
}

TEST_F(TlsFilesTest, AreNoPem) {
  const PemPair right = authority.issue();
  EXPECT_EQ(problem_of({"no PEM", right.key}),
            starts("tls_cert", "one-cert.pem") + "expected a readable PEM file: it holds no PEM");
  EXPECT_EQ(
      problem_of({"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", right.key}),
      starts("tls_cert", "one-cert.pem") + "expected a certificate in PEM");
  EXPECT_EQ(problem_of({right.cert, right.cert}),
            starts("tls_key", "one-key.pem") + "expected a private key in PEM, without a password");
  EXPECT_EQ(problem(folder.write("one", right.key, right)),
            starts("tls_ca", "one-ca.pem") + "expected a certificate in PEM");
  EXPECT_EQ(problem_of({right.cert, "-----BEGIN" + std::string(kMaxPemBytes, 'x')}),
            starts("tls_key", "one-key.pem") +
                "expected a readable PEM file: it has 1048586 bytes, more than 1048576");
}

// To open or read a FIFO would block until somebody writes.
TEST_F(TlsFilesTest, AreNoFiles) {
  TlsFiles files = folder.write("one", authority.pem(), authority.issue());
  const std::string expected = "expected a readable PEM file: it is no regular file";
  files.ca = folder.path("");
  EXPECT_EQ(problem(files), starts("tls_ca", "") + expected);
  files.ca = folder.path("fifo");
  ASSERT_EQ(::mkfifo(files.ca.c_str(), 0600), 0);
  EXPECT_EQ(problem(files), starts("tls_ca", "fifo") + expected);
}

TEST_F(TlsFilesTest, HaveExpired) {
  const std::string said = problem_of(authority.issue({.from = -7200, .until = -60}));
  const std::string expected =
      starts("tls_cert", "one-cert.pem") + "the certificate has expired, on 20";
  EXPECT_EQ(said.substr(0, expected.size()), expected);
  EXPECT_EQ(said.substr(said.size() - 4), " UTC");
}

TEST_F(TlsFilesTest, ExpireInTime) {
  const TlsFiles files = folder.write("one", authority.pem(), authority.issue());
  EXPECT_EQ(problem(files), "");
  EXPECT_NE(problem(files, std::chrono::hours(2)).find("has expired"), std::string::npos);
  EXPECT_NE(problem(files, -std::chrono::hours(2)).find("is not valid before"), std::string::npos);
}

// Each connection asks; what has not changed is parsed once a minute.
TEST_F(TlsFilesTest, AreCheckedAgainWhenTheyChangeOrMayHaveExpired) {
  RepeatedCheck repeated;
  const auto start = std::chrono::system_clock::now();
  const auto at = [&](const TlsFiles& files, std::chrono::seconds later) {
    return bool(repeated.check(*read_tls_files(files), files, start + later));
  };
  const TlsFiles good = folder.write("one", authority.pem(), authority.issue({.until = 30}));
  EXPECT_TRUE(at(good, std::chrono::seconds(0)));
  EXPECT_TRUE(at(good, kCheckEvery - std::chrono::seconds(1))) << "found good a minute ago at most";
  EXPECT_FALSE(at(good, kCheckEvery));
  EXPECT_FALSE(at(good, -std::chrono::hours(2))) << "a clock that was set back";
  const TlsFiles bad =
      folder.write("two", authority.pem(), {authority.issue().cert, authority.issue().key});
  EXPECT_TRUE(at(good, std::chrono::seconds(0)));
  EXPECT_FALSE(at(bad, std::chrono::seconds(0)));
  EXPECT_FALSE(at(bad, std::chrono::seconds(0)));
  EXPECT_TRUE(at(good, std::chrono::seconds(0)));
}

TEST_F(TlsFilesTest, HaveTheKeyOfAnother) {
  EXPECT_EQ(
      problem_of({authority.issue().cert, authority.issue().key}),
      starts("tls_key", "one-key.pem") +
          "the key is not that of the certificate in tls_cert=" + folder.path("one-cert.pem"));
}

TEST_F(TlsFilesTest, AreSignedWrongly) {
  PemPair pair = authority.issue();
  // The signature is what a certificate ends with.
  char& last = pair.cert.at(pair.cert.find("-----END") - 8);
  last = last == 'A' ? 'B' : 'A';
  const std::string said = problem_of(pair);
  EXPECT_TRUE(said.starts_with(starts("tls_cert", "one-cert.pem"))) << said;
}

TEST_F(TlsFilesTest, AreOfAnotherAuthority) {
  const TestAuthority other("another authority");
  const std::string said = problem_of(other.issue());
  const std::string expected = starts("tls_cert", "one-cert.pem") +
                               "tls_ca=" + folder.path("one-ca.pem") +
                               " does not vouch for the certificate: ";
  EXPECT_EQ(said.substr(0, expected.size()), expected);
}

}  // namespace
}  // namespace ddprun::rendezvous
