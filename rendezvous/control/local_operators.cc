#include "rendezvous/control/local_operators.h"

#include <fmt/format.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/log.h"
#include "rendezvous/control/local_socket.h"
#include "rendezvous/grpc/channel.h"

namespace ddprun::rendezvous {
namespace {

using boost::asio::local::stream_protocol;

// Those who wait for a job's end are told by then.
constexpr std::chrono::milliseconds kEndLimit{500};
constexpr std::chrono::seconds kAcceptAgain{1};

ControlService::Options local(ControlService::Options options) {
  options.is_local = true;
  options.on_admitted = nullptr;
  return options;
}

}  // namespace

LocalOperators::LocalOperators(boost::asio::io_context& loop, const std::string& address,
                               std::uint16_t port, ControlService::Options options)
    : acceptor_(loop), pause_(loop), service_(loop, local(std::move(options))) {
  const auto listening = listen_locally(new_local_name(address, port).name);
  if (!listening) {
    log::warning(fmt::format("rendezvous: no socket for the operators of this host: {}",
                             listening.error().message()));
    return;
  }
  acceptor_.assign(stream_protocol(), *listening);
  accept();
}

LocalOperators::~LocalOperators() { end(); }

void LocalOperators::end() {
  boost::system::error_code ignored;
  alive_.reset();
  acceptor_.close(ignored);
  pause_.cancel();
  service_.end();
  if (!server_) return;
  server_->Shutdown(std::chrono::system_clock::now() + kEndLimit);
  server_.reset();
}

// A connection that was accepted may come after our end.
void LocalOperators::accept() {
  acceptor_.async_accept(
      [this, alive = std::weak_ptr<bool>(alive_)](const boost::system::error_code& failed,
                                                  stream_protocol::socket socket) {
        if (alive.expired() || failed == boost::asio::error::operation_aborted) return;
        if (failed) return accept_later();
        socket.native_non_blocking(true);
        serve(socket.release());
        accept();
      });
}

// No descriptor is free, mostly: at once it would fail again.
void LocalOperators::accept_later() {
  pause_.expires_after(kAcceptAgain);
  pause_.async_wait(
      [this, alive = std::weak_ptr<bool>(alive_)](const boost::system::error_code& failed) {
        if (!alive.expired() && !failed) accept();
      });
}

void LocalOperators::serve(int fd) {
  const auto caller = peer_of(fd);
  if (caller && may_order(*caller, ::geteuid()) && !server_) {
    grpc::ServerBuilder builder;
    set_up_server(builder);
    service_.add_to(builder);
    server_ = builder.BuildAndStart();
  }
  if (!caller || !may_order(*caller, ::geteuid()) || !server_) {
    ::close(fd);
    return;
  }
  grpc::AddInsecureChannelFromFd(server_.get(), fd);
}

}  // namespace ddprun::rendezvous
