#include "rendezvous/trust/openssl.h"

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>

#include <array>
#include <memory>
#include <utility>

#include "tests/rendezvous/trust/certificates.h"

namespace ddprun::rendezvous {
namespace {

struct OpensslTest : testing::Test {
  void SetUp() override { set_up_openssl(); }
  void TearDown() override { ::ERR_clear_error(); }

  static bool has_cipher(const char* name) {
    const std::unique_ptr<EVP_CIPHER, decltype(&::EVP_CIPHER_free)> one(
        ::EVP_CIPHER_fetch(nullptr, name, nullptr), &::EVP_CIPHER_free);
    return one != nullptr;
  }

  using Context = std::unique_ptr<SSL_CTX, decltype(&::SSL_CTX_free)>;
  using Side = std::unique_ptr<SSL, decltype(&::SSL_free)>;

  Context context() const {
    Context one(::SSL_CTX_new(::TLS_method()), &::SSL_CTX_free);
    ::SSL_CTX_use_certificate_chain_file(one.get(), files.cert.c_str());
    ::SSL_CTX_use_PrivateKey_file(one.get(), files.key.c_str(), SSL_FILETYPE_PEM);
    ::SSL_CTX_load_verify_locations(one.get(), files.ca.c_str(), nullptr);
    ::SSL_CTX_set_verify(one.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    SSL_CTX_set1_groups_list(one.get(), "P-256");
    return one;
  }
  // Returns node and host after it, in memory. Nothing if it failed.
  std::pair<Side, Side> handshake() const {
    Side node(::SSL_new(context().get()), &::SSL_free);
    Side host(::SSL_new(context().get()), &::SSL_free);
    BIO* of_node = nullptr;
    BIO* of_host = nullptr;
    ::BIO_new_bio_pair(&of_node, 0, &of_host, 0);
    ::SSL_set_bio(node.get(), of_node, of_node);
    ::SSL_set_bio(host.get(), of_host, of_host);
    ::SSL_set_connect_state(node.get());
    ::SSL_set_accept_state(host.get());
    bool done = false;
    for (int turn = 0; turn < 10 && !done; ++turn) {
      const bool node_done = ::SSL_do_handshake(node.get()) == 1;
      done = ::SSL_do_handshake(host.get()) == 1 && node_done;
    }
    if (!done) node.reset();
    return {std::move(node), std::move(host)};
  }

  const TestAuthority authority;
  const TestFolder folder;
  const TlsFiles files = folder.write("one", authority.pem(), authority.issue());
};

TEST_F(OpensslTest, ASideShowsItsOwnCertificateOnly) {
  const auto [node, host] = handshake();
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(sk_X509_num(::SSL_get_peer_cert_chain(node.get())), 1);  // the authority's is not there
  EXPECT_EQ(sk_X509_num(::SSL_get_peer_cert_chain(host.get())),
            0);  // a host's list leaves out the first
  EXPECT_EQ(::SSL_get_num_tickets(host.get()), 0U);
}

// As with gRPC, which asks for P-256 only.
TEST_F(OpensslTest, ConnectionsAgreeOnX25519) {
  const auto [node, host] = handshake();
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(SSL_get_negotiated_group(node.get()), NID_X25519);
}

TEST_F(OpensslTest, OffersFewAlgorithms) {
  EXPECT_TRUE(has_cipher("AES-256-GCM"));
  EXPECT_FALSE(has_cipher("CAMELLIA-256-CBC"));
}

TEST_F(OpensslTest, HasRandomNumbers) {
  std::array<unsigned char, 16> one{};
  std::array<unsigned char, 16> other{};
  EXPECT_EQ(::RAND_bytes(one.data(), one.size()), 1);
  EXPECT_EQ(::RAND_priv_bytes(other.data(), other.size()), 1);
  EXPECT_NE(one, other);
}

}  // namespace
}  // namespace ddprun::rendezvous
