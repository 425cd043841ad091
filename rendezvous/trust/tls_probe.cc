#include "rendezvous/trust/tls_probe.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
// For the whole program: Asio is compiled apart (base/asio.cc).
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <utility>

#include "rendezvous/trust/openssl.h"

namespace ddprun::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// gRPC takes no other protocol (RFC 7301).
constexpr std::array<unsigned char, 3> kHttp2 = {2, 'h', '2'};

// Returns whether it is an answer of the other side: an alert, or bytes of another protocol. A
// connection that only ends may be one of a host that is just ending or not yet there.
bool is_answer(const error_code& error) {
  if (error.category() != asio::error::get_ssl_category()) return false;
  const int reason = ERR_GET_REASON(static_cast<unsigned long>(error.value()));
  return reason >= SSL_AD_REASON_OFFSET || reason == SSL_R_WRONG_VERSION_NUMBER;
}

// Lives until its last operation has ended.
class Probe : public std::enable_shared_from_this<Probe> {
 public:
  Probe(const asio::any_io_executor& loop, ProbeTarget target, asio::ssl::context context,
        std::function<void(const TlsProblem&)> done)
      : target_(std::move(target)),
        done_(std::move(done)),
        context_(std::move(context)),
        stream_(loop, context_),
        limit_(loop, kProbeLimit) {
    auto* const ssl = stream_.native_handle();
    stream_.set_verify_mode(asio::ssl::verify_peer);
    ::SSL_set_alpn_protos(ssl, kHttp2.data(), kHttp2.size());
    if (::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(ssl), target_.name.c_str()) != 1)
      ::SSL_set1_host(ssl, target_.name.c_str());
    ::ERR_clear_error();
  }

  void start() {
    limit_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) self->end({});
    });
    const tcp::endpoint host(asio::ip::make_address(target_.address), target_.port);
    stream_.lowest_layer().async_connect(host,
                                         [self = shared_from_this()](const error_code& error) {
                                           return error ? self->end({}) : self->shake_hands();
                                         });
  }

 private:
  void shake_hands() {
    stream_.async_handshake(asio::ssl::stream_base::client,
                            [self = shared_from_this()](const error_code& error) {
                              return error ? self->end(self->problem(error)) : self->listen();
                            });
  }
  // In TLS 1.3 a host judges our certificate after our side of the handshake is over. If it takes
  // it, its first frame comes.
  void listen() {
    stream_.async_read_some(asio::buffer(byte_),
                            [self = shared_from_this()](const error_code& error, std::size_t) {
                              self->end(error ? self->refusal(error) : TlsProblem());
                            });
  }

  // An alert says why. A connection that only ends does not, and how it ends is chance.
  TlsProblem refusal(const error_code& error) const {
    const bool is_alert = error.category() == asio::error::get_ssl_category();
    return {fmt::format("it does not accept the certificate in tls_cert={}{}", target_.files.cert,
                        is_alert ? fmt::format(" ({})", error.message()) : "")};
  }
  TlsProblem problem(const error_code& error) {
    const long result = ::SSL_get_verify_result(stream_.native_handle());
    if (result == X509_V_ERR_HOSTNAME_MISMATCH || result == X509_V_ERR_IP_ADDRESS_MISMATCH)
      return {fmt::format("its certificate is not one for {}", target_.name)};
    if (result != X509_V_OK)
      return {fmt::format("tls_ca={} does not vouch for its certificate: {}", target_.files.ca,
                          ::X509_verify_cert_error_string(result))};
    if (!is_answer(error)) return {};
    return {.text = fmt::format("it does not take TLS ({})", error.message()),
            .takes_no_tls = true};
  }

  void end(const TlsProblem& problem) {
    if (!done_) return;
    limit_.cancel();
    error_code ignored;
    stream_.lowest_layer().close(ignored);
    std::exchange(done_, nullptr)(problem);
  }

  const ProbeTarget target_;
  std::function<void(const TlsProblem&)> done_;  // empty: called
  asio::ssl::context context_;
  asio::ssl::stream<tcp::socket> stream_;
  asio::steady_timer limit_;
  std::array<char, 1> byte_{};
};

}  // namespace

void probe_tls(const asio::any_io_executor& loop, const ProbeTarget& target,
               std::function<void(const TlsProblem& problem)> done) {
  const auto say = [&](const std::string& text) {
    asio::post(loop, [done, text] { done({.text = text}); });
  };
  const auto texts = read_tls_files(target.files);
  if (!texts) return say(texts.error().message());
  if (const auto checked = check_tls_texts(*texts, target.files, std::chrono::system_clock::now());
      checked.has_error())
    return say(checked.error().message());
  set_up_openssl();
  asio::ssl::context context(asio::ssl::context::tls_client);
  error_code error;
  context.add_certificate_authority(asio::buffer(texts->ca), error);
  if (!error) context.use_certificate_chain(asio::buffer(texts->cert), error);
  if (!error) context.use_private_key(asio::buffer(texts->key), asio::ssl::context::pem, error);
  if (error) return say(fmt::format("tls_cert={}: {}", target.files.cert, error.message()));
  std::make_shared<Probe>(loop, target, std::move(context), std::move(done))->start();
}

}  // namespace ddprun::rendezvous
