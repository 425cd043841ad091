#include "rendezvous/trust/tls_credentials.h"

#include <fmt/format.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "rendezvous/trust/openssl.h"

namespace ddprun::rendezvous {
namespace {

// gRPC's C++ API has no credentials that ask for their files at each connection; its C API has.
class ReloadedCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadedCredentials(TlsFiles files) : files_(std::move(files)) {
    set_up_openssl();
    auto* const options = ::grpc_ssl_server_credentials_create_options_using_config_fetcher(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, &fetch, this);
    credentials_ = ::grpc_ssl_server_credentials_create_with_options(options);
  }
  ReloadedCredentials(const ReloadedCredentials&) = delete;
  ReloadedCredentials& operator=(const ReloadedCredentials&) = delete;
  ~ReloadedCredentials() override { ::grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*none*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return ::grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  static grpc_ssl_certificate_config_reload_status fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<ReloadedCredentials*>(self)->reload(*config);
  }
  grpc_ssl_certificate_config_reload_status reload(grpc_ssl_server_certificate_config*& config) {
    const std::lock_guard lock(mutex_);
    auto texts = read_tls_files(files_);
    if (!texts) return keep(texts.error().message());
    if (const auto checked = check_.check(*texts, files_, std::chrono::system_clock::now());
        checked.has_error())
      return keep(checked.error().message());
    last_problem_.clear();
    if (texts_ == *texts) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    texts_ = *std::move(texts);
    grpc_ssl_pem_key_cert_pair pair{texts_->key.c_str(), texts_->cert.c_str()};
    config = ::grpc_ssl_server_certificate_config_create(texts_->ca.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }
  // The three files are replaced one after the other: for a moment they may not fit each other. To
  // gRPC nothing has changed then.
  grpc_ssl_certificate_config_reload_status keep(const std::string& problem) {
    if (std::exchange(last_problem_, problem) != problem)
      log::warning(fmt::format("rendezvous: {}{}", problem,
                               texts_ ? "; the files of before stay in use" : ""));
    return texts_ ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED
                  : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
  }

  const TlsFiles files_;
  grpc_server_credentials* credentials_ = nullptr;
  std::mutex mutex_;  // connections are set up on several threads of gRPC
  RepeatedCheck check_;
  std::optional<TlsTexts> texts_;
  std::string last_problem_;
};

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> client_credentials(TlsTexts texts) {
  set_up_openssl();
  return grpc::SslCredentials({.pem_root_certs = std::move(texts.ca),
                               .pem_private_key = std::move(texts.key),
                               .pem_cert_chain = std::move(texts.cert)});
}

std::shared_ptr<grpc::ServerCredentials> server_credentials(TlsFiles files) {
  return std::make_shared<ReloadedCredentials>(std::move(files));
}

TlsAcceptor::TlsAcceptor(grpc::ServerBuilder& builder, TlsFiles files, int handshake_limit_ms)
    : acceptor_(builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          server_credentials(std::move(files)))) {
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, handshake_limit_ms);
}

void TlsAcceptor::adopt(int fd) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.fd = fd;
  acceptor_->HandleNewConnection(&connection);
}

}  // namespace ddprun::rendezvous
