#include "store/server.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proto/assert.h"
#include "proto/log.h"
#include "proto/loop.h"
#include "store/table.h"
#include "store/wire.h"

namespace ddprun::store {
namespace {

using asio::ip::tcp;
using boost::system::error_code;

// What an idle connection reads into. Most requests fit; whatever does not goes on in the buffer
// that all share, so that an idle connection does not own 256 KiB.
constexpr std::size_t kFirstReadBytes = 128;
constexpr std::size_t kSharedReadBytes = std::size_t{256} * 1024;
// Answers gathered before they are sent though more requests wait: bounds what one readable event
// makes us hold.
constexpr std::size_t kGatherBytes = kMiB;

// Two owners: the server's map while the connection is open, and its coroutine until it ends.
struct Connection {
  Connection(ConnectionId name, tcp::socket connected, const Limits& limits)
      : id(name), socket(std::move(connected)), decoder(limits) {}

  std::string_view unsent_bytes() const { return std::string_view(unsent).substr(sent); }

  ConnectionId id;
  tcp::socket socket;
  Decoder decoder;
  std::string
      unsent;  // answers that the kernel did not take yet; while there are any, nothing is read
  std::size_t sent = 0;     // of unsent
  std::size_t counted = 0;  // bytes of this connection within Core::buffered_bytes_
  bool open = true;         // false: dropped; the coroutine ends when it next resumes
  bool requests_left =
      false;  // the decoder may hold whole requests, put off until answers were sent
  std::array<char, kFirstReadBytes> first_read;
};

}  // namespace

class Server::Core {
 public:
  Core(asio::io_context& loop, Limits limits)
      : loop_(loop), limits_(limits), table_(std::in_place, limits_) {}

  static void serve(const std::shared_ptr<Core>& self, tcp::acceptor bound);
  static void adopt(const std::shared_ptr<Core>& self, tcp::socket socket);
  void reset();
  void close();

  std::size_t connections() const { return connections_.size(); }
  const Table& table() const { return *table_; }

 private:
  static asio::awaitable<void> converse(std::shared_ptr<Core> self,
                                        std::shared_ptr<Connection> connection);
  static asio::awaitable<void> send_rest(Core& self, Connection& connection);

  void received(Connection& connection, const error_code& failure, std::size_t bytes);
  std::string_view take_chunk(Connection& connection, std::size_t first_bytes);
  void answer(Connection& connection);
  bool apply_requests(Connection& connection);
  void deliver(Connection& connection);
  void send(Connection& connection, std::string_view bytes);
  void account(Connection& connection);
  void refuse(Connection& connection, const Error& error);
  static void report_refusal(const Connection& connection, const Error& error);
  void drop(Connection& connection);
  void drop_all();

  asio::io_context& loop_;
  const Limits limits_;
  std::optional<Table>
      table_;  // always there; optional so that reset() can make a new one in place
  std::unordered_map<ConnectionId, std::shared_ptr<Connection>> connections_;
  std::vector<std::shared_ptr<Listener>> listeners_;  // two owners: this and each one's coroutine
  Outbox outbox_;                                     // scratch of one readable event
  std::vector<char> shared_read_ =
      std::vector<char>(kSharedReadBytes);  // used between two suspensions only
  std::size_t buffered_bytes_ = 0;
  ConnectionId next_id_ = 1;
  bool full_ = false;  // the connection limit was met, and said so
  bool closed_ = false;
};

void Server::Core::serve(const std::shared_ptr<Core>& self, tcp::acceptor bound) {
  DDPRUN_ASSERT(!self->closed_);
  auto listener = std::make_shared<Listener>(std::move(bound));
  if (const auto listening = listener->listen(); listening.has_error()) {
    log::error(fmt::format("store: {}", listening.error().message()));
    return;
  }
  self->listeners_.push_back(listener);
  spawn(self->loop_, "store accept",
        Listener::run(listener, [self](tcp::socket socket) { adopt(self, std::move(socket)); }));
}

void Server::Core::adopt(const std::shared_ptr<Core>& self, tcp::socket socket) {
  if (self->closed_) return;
  if (self->connections_.size() >= self->limits_.connections) {
    if (!self->full_)
      log::warning(fmt::format("store: connections refused: {} are open, the limit",
                               self->limits_.connections));
    self->full_ = true;
    return;
  }
  const auto connection =
      std::make_shared<Connection>(self->next_id_++, std::move(socket), self->limits_);
  self->connections_.emplace(connection->id, connection);
  spawn(self->loop_, "store peer", converse(self, connection));
}

void Server::Core::reset() {
  drop_all();
  for (const auto& listener : listeners_) listener->drop_queue();
  table_.emplace(limits_);
}

void Server::Core::close() {
  closed_ = true;
  for (const auto& listener : listeners_) listener->close();
  listeners_.clear();
  drop_all();
  table_.emplace(limits_);
}

void Server::Core::drop_all() {
  while (!connections_.empty()) drop(*std::shared_ptr<Connection>(connections_.begin()->second));
}

// Reads, answers, and sends what the kernel would not take at once, in turn, until either side ends
// it.
asio::awaitable<void> Server::Core::converse(std::shared_ptr<Core> self,
                                             std::shared_ptr<Connection> connection) {
  while (connection->open) {
    if (!connection->unsent.empty()) {
      co_await send_rest(*self, *connection);
    } else if (connection->requests_left) {
      co_await asio::post(
          self->loop_,
          asio::use_awaitable);  // others first: a fast reader could keep us here for long
      if (connection->open) self->answer(*connection);
    } else {
      // Here and not in a coroutine of its own: an idle connection should not hold one frame more.
      const auto [failure, bytes] = co_await connection->socket.async_read_some(
          asio::buffer(connection->first_read), kAsTuple);
      self->received(*connection, failure, bytes);
    }
  }
}

// `failure` and `bytes` are what the read into `first_read` ended with.
void Server::Core::received(Connection& connection, const error_code& failure, std::size_t bytes) {
  if (!connection.open) return;
  if (failure == asio::error::operation_aborted)
    return;  // send() interrupted us: there are answers to finish first
  if (failure) return drop(connection);
  connection.decoder.feed(take_chunk(connection, bytes));
  answer(connection);
}

asio::awaitable<void> Server::Core::send_rest(Core& self, Connection& connection) {
  // Only waits: `unsent` may grow, and move, meanwhile.
  const auto [failure] = co_await connection.socket.async_wait(tcp::socket::wait_write, kAsTuple);
  if (!connection.open) co_return;
  error_code error = failure;
  if (!error)
    connection.sent += connection.socket.write_some(asio::buffer(connection.unsent_bytes()), error);
  if (error && error != asio::error::would_block) {
    self.drop(connection);
    co_return;
  }
  if (connection.unsent_bytes().empty()) {
    connection.unsent = {};
    connection.sent = 0;
  }
  self.account(connection);
}

// What one readable event brought: the first bytes alone, or, where they filled their buffer, all
// that the kernel holds and the shared buffer takes. An error here is met again by the next read.
std::string_view Server::Core::take_chunk(Connection& connection, std::size_t first_bytes) {
  if (first_bytes < kFirstReadBytes) return {connection.first_read.data(), first_bytes};
  std::memcpy(shared_read_.data(), connection.first_read.data(), first_bytes);
  error_code ignored;
  const std::size_t more =
      connection.socket.read_some(asio::buffer(shared_read_) + first_bytes, ignored);
  return {shared_read_.data(), first_bytes + more};
}

// Applies the requests that are there and sends what follows from them: one send to the connection,
// one to each woken.
void Server::Core::answer(Connection& connection) {
  outbox_.reply.clear();
  outbox_.woken.clear();
  connection.requests_left = apply_requests(connection);
  deliver(connection);
  if (outbox_.reply.capacity() > kGatherBytes) outbox_.reply = {};
}

// True: stopped because enough answers were gathered; there may be more requests.
bool Server::Core::apply_requests(Connection& connection) {
  while (outbox_.reply.size() < kGatherBytes) {
    const auto request = connection.decoder.next();
    if (request.has_error()) {
      refuse(connection, request.error());
      return false;
    }
    if (!request->has_value()) return false;
    if (auto applied = table_->apply(connection.id, **request, outbox_); applied.has_error()) {
      refuse(connection, applied.error());
      return false;
    }
  }
  connection.decoder.keep();
  return true;
}

void Server::Core::deliver(Connection& connection) {
  if (connection.open) {
    send(connection, outbox_.reply);
    account(connection);
  }
  for (const ConnectionId id : outbox_.woken) {
    const auto woken = connections_.find(id);
    if (woken == connections_.end()) continue;  // its coroutine dropped it while we delivered
    const auto keep_alive = woken->second;
    constexpr char ready_byte = static_cast<char>(Status::kReady);
    send(*keep_alive, {&ready_byte, 1});
  }
}

// Sends now what the kernel takes and keeps the rest for the connection's coroutine, which is told
// if it is reading.
void Server::Core::send(Connection& connection, std::string_view bytes) {
  if (bytes.empty()) return;
  if (!connection.unsent.empty()) {
    connection.unsent.append(bytes);
    return;
  }
  error_code failure;
  const std::size_t taken = connection.socket.write_some(asio::buffer(bytes), failure);
  if (failure && failure != asio::error::would_block) return drop(connection);
  if (taken == bytes.size()) return;
  connection.unsent.assign(bytes.substr(taken));
  connection.socket.cancel(failure);
}

// Keeps count of the memory that peers make us hold; the one that passes the limit is dropped.
void Server::Core::account(Connection& connection) {
  if (!connection.open) return;
  const std::size_t holds = connection.decoder.held_bytes() + connection.unsent.size();
  buffered_bytes_ += holds;
  buffered_bytes_ -= connection.counted;
  connection.counted = holds;
  if (buffered_bytes_ <= limits_.buffered_bytes) return;
  report_refusal(connection, {ErrorCode::kLimit,
                              fmt::format("buffered bytes: at most {}", limits_.buffered_bytes)});
  drop(connection);
}

// Ends a connection that broke a rule; answers to its earlier requests are sent as far as the
// kernel takes them.
void Server::Core::refuse(Connection& connection, const Error& error) {
  report_refusal(connection, error);
  send(connection, outbox_.reply);
  drop(connection);
}

void Server::Core::report_refusal(const Connection& connection, const Error& error) {
  error_code ignored;
  const auto peer = connection.socket.remote_endpoint(ignored);
  log::info(fmt::format("store: closed the connection from {}:{}: {}", peer.address().to_string(),
                        peer.port(), error.message()));
}

void Server::Core::drop(Connection& connection) {
  if (!connection.open) return;
  connection.open = false;
  full_ = false;
  buffered_bytes_ -= connection.counted;
  table_->disconnect(connection.id);
  error_code ignored;
  connection.socket.close(ignored);
  connections_.erase(connection.id);  // its coroutine still owns it
}

Server::Server(asio::io_context& loop, Limits limits)
    : core_(std::make_shared<Core>(loop, limits)) {}
Server::~Server() { core_->close(); }

void Server::serve(tcp::acceptor bound_acceptor) { Core::serve(core_, std::move(bound_acceptor)); }
void Server::adopt(tcp::socket connected) {
  if (prepare(connected)) Core::adopt(core_, std::move(connected));
}
void Server::reset() { core_->reset(); }
void Server::close() { core_->close(); }

std::size_t Server::connections() const { return core_->connections(); }
std::size_t Server::keys() const { return core_->table().key_count(); }
std::size_t Server::waiters() const { return core_->table().waits().registrations(); }

}  // namespace ddprun::store
