// For tests of a node and a host in one process. Listener is the listening side of a host: it
// accepts connections and hands them over, as the agent does. Relay is a TCP relay between node and
// host. cut() acts as a dying machine, freeze() as a broken network. It keeps what it carried, as
// an eavesdropper does.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ddprun::rendezvous {

namespace asio = boost::asio;
using boost::asio::ip::tcp;

inline tcp::endpoint any_loopback_port() { return {boost::asio::ip::address_v4::loopback(), 0}; }

// Listens on a loopback port. `take` gets each accepted socket and owns it.
class Listener {
 public:
  Listener(asio::io_context& loop, std::function<void(tcp::socket)> take)
      : acceptor_(loop, any_loopback_port()), take_(std::move(take)) {
    accept();
  }
  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }

 private:
  void accept() {
    acceptor_.async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
      if (error) return;
      take_(std::move(socket));
      accept();
    });
  }

  tcp::acceptor acceptor_;
  std::function<void(tcp::socket)> take_;
};

class Relay {
 public:
  Relay(asio::io_context& loop, std::uint16_t to)
      : loop_(loop),
        to_(boost::asio::ip::address_v4::loopback(), to),
        listener_(loop, [this](tcp::socket from) {
          auto pair = std::make_shared<Pair>(std::move(from), tcp::socket(loop_));
          pair->host.connect(to_);
          pairs_.push_back(pair);
          pump(pair, pair->node, pair->host, std::make_shared<Bytes>(), from_node);
          pump(pair, pair->host, pair->node, std::make_shared<Bytes>(), from_host);
        }) {}
  std::uint16_t port() const { return listener_.port(); }

  // Both ends see the connection die.
  void cut() {
    for (const auto& pair : pairs_) {
      boost::system::error_code ignored;
      pair->node.close(ignored);
      pair->host.close(ignored);
    }
  }
  // The connections stay open and carry nothing any more.
  void freeze() {
    for (const auto& pair : pairs_) pair->frozen = true;
  }

  std::string from_node;
  std::string from_host;

 private:
  struct Pair {
    Pair(tcp::socket from, tcp::socket to) : node(std::move(from)), host(std::move(to)) {}
    tcp::socket node;
    tcp::socket host;
    bool frozen = false;
  };

  using Bytes = std::array<char, 4096>;
  using SharedPair = std::shared_ptr<Pair>;  // held by pairs_ and by its two pumps

  static void pump(const SharedPair& pair, tcp::socket& from, tcp::socket& to,
                   const std::shared_ptr<Bytes>& bytes, std::string& heard) {
    from.async_read_some(asio::buffer(*bytes), [=, &from, &to, &heard](
                                                   boost::system::error_code failed,
                                                   std::size_t count) {
      heard.append(bytes->data(), count);
      if (!failed && !pair->frozen)
        asio::write(to, asio::buffer(bytes->data(), count), failed);  // small, so it never blocks
      if (!failed) return pump(pair, from, to, bytes, heard);
      boost::system::error_code ignored;
      to.shutdown(tcp::socket::shutdown_both, ignored);
    });
  }

  asio::io_context& loop_;
  tcp::endpoint to_;
  std::vector<std::shared_ptr<Pair>> pairs_;
  Listener listener_;
};

}  // namespace ddprun::rendezvous
