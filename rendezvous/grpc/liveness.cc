#include "rendezvous/grpc/liveness.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <utility>

namespace ddprun::rendezvous {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Held by its owner and by the read under way.
class LivenessConnections::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::string leader, tcp::socket socket, OnClosed closed)
      : leader_(std::move(leader)), socket_(std::move(socket)), closed_(std::move(closed)) {}

  // A new connection has room for a byte. If it breaks already, the read tells.
  void begin() {
    [[maybe_unused]] const auto sent =
        ::send(socket_.native_handle(), &kLivenessFirstByte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    socket_.async_read_some(asio::buffer(byte_),
                            [self = shared_from_this()](const error_code& ended, std::size_t) {
                              if (!self->is_over_ && ended == asio::error::eof)
                                self->closed_(self->leader_);
                            });
  }
  void end() {
    is_over_ = true;
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  const std::string leader_;
  tcp::socket socket_;
  const OnClosed closed_;
  std::array<char, 1> byte_{};
  bool is_over_ = false;
};

LivenessConnections::LivenessConnections(OnClosed closed) : closed_(std::move(closed)) {}

LivenessConnections::~LivenessConnections() { drop_all(); }

void LivenessConnections::hold(const std::string& leader, tcp::socket socket) {
  drop(next_);
  next_ = std::make_shared<Connection>(leader, std::move(socket), closed_);
  next_->begin();
}

void LivenessConnections::followed() {
  if (!next_) return;
  drop(current_);
  current_ = std::exchange(next_, nullptr);
}

void LivenessConnections::drop_all() {
  drop(current_);
  drop(next_);
}

void LivenessConnections::drop(std::shared_ptr<Connection>& connection) {
  if (const auto dropped = std::exchange(connection, nullptr)) dropped->end();
}

}  // namespace ddprun::rendezvous
