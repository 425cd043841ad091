#include "rendezvous/trust/tls_channels.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <deque>
#include <memory>

namespace ddprun::rendezvous {
namespace {

// Both ends of one connection in memory. No certificates: what is tested knows none.
class Pair {
 public:
  explicit Pair(SSL_CTX* context) : client_(::SSL_new(context)), server_(::SSL_new(context)) {
    BIO* to_client = nullptr;
    BIO* to_server = nullptr;
    EXPECT_EQ(::BIO_new_bio_pair(&to_client, 0, &to_server, 0), 1);
    ::SSL_set_bio(client_, to_client, to_client);
    ::SSL_set_bio(server_, to_server, to_server);
    ::SSL_set_connect_state(client_);
    ::SSL_set_accept_state(server_);
    watch_channel(client_);
    watch_channel(server_);
    ::SSL_do_handshake(client_);
    ::SSL_do_handshake(server_);
    ::SSL_do_handshake(client_);  // sends its last message
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() {
    for (SSL* const end : {client_, server_}) {
      forget_channel(end);
      ::SSL_free(end);
    }
  }
  void server_reads_the_last() { EXPECT_EQ(::SSL_do_handshake(server_), 1); }

 private:
  SSL* const client_;
  SSL* const server_;
};

struct TlsChannelsTest : testing::Test {
  TlsChannelsTest() {
    EXPECT_EQ(::SSL_CTX_set_cipher_list(context.get(), "AECDH-AES128-SHA:@SECLEVEL=0"), 1);
    ::SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
  }
  std::unique_ptr<SSL_CTX, decltype(&::SSL_CTX_free)> context{::SSL_CTX_new(::TLS_method()),
                                                              ::SSL_CTX_free};
};

TEST_F(TlsChannelsTest, BothEndsKnowAChannelByOneName) {
  const auto mark = mark_channels();
  Pair pair(context.get());
  EXPECT_EQ(client_channels(mark, true).size(), 1U);
  EXPECT_FALSE(has_host_channel(client_channels(mark, true)));
  pair.server_reads_the_last();
  EXPECT_TRUE(has_host_channel(client_channels(mark, true)));
  EXPECT_TRUE(client_channels(mark, false).empty());
}

TEST_F(TlsChannelsTest, OfManyACallerNamesOnesThatTheHostHasSeen) {
  const auto mark = mark_channels();
  std::deque<Pair> pairs;
  for (int i = 0; i < 100; ++i) {
    pairs.emplace_back(context.get());
    if (i < 50) pairs.back().server_reads_the_last();
  }
  EXPECT_EQ(client_channels(mark, true).size(), kMostChannels);
  EXPECT_TRUE(has_host_channel(client_channels(mark, true)));
}

}  // namespace
}  // namespace ddprun::rendezvous
