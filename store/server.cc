#include "store/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/memory_cgroup.h"
#include "base/net/descriptors.h"
#include "store/connection.h"
#include "store/memory_bound.h"
#include "store/table.h"
#include "store/wire.h"

namespace ddprun::store {
namespace {

using asio::ip::tcp;
using boost::system::error_code;
using Time = std::chrono::steady_clock::time_point;

constexpr std::size_t kSharedReadBytes = std::size_t{64} * 1024;
// A connection's turn ends after so many requests or a large answer, though more requests wait. So
// a client that floods us with small requests hardly delays the others.
constexpr int kRequestsPerTurn = 16;

}  // namespace

class Server::Core {
 public:
  Core(asio::io_context& loop, StoreLimits limits, Admits admits)
      : loop_(loop),
        limits_(limits),
        admits_(std::move(admits)),
        table_(std::in_place, limits_),
        greeting_timer_(loop) {}

  static void serve(const std::shared_ptr<Core>& self, tcp::acceptor bound);
  static void adopt(const std::shared_ptr<Core>& self, tcp::socket socket);
  void reset();
  void close();

  std::size_t connections() const { return connections_.size(); }
  const Table& table() const { return *table_; }

 private:
  // A connection that has not sent its VALIDATE yet, and when it is too late.
  struct Greeting {
    ConnectionId id;
    Time until;
  };

  static asio::awaitable<void> converse(std::shared_ptr<Core> self,
                                        std::shared_ptr<Connection> connection);
  static asio::awaitable<void> send_rest(Core& self, Connection& connection);

  void received(Connection& connection, const error_code& failure, std::size_t bytes);
  std::string_view take_chunk(Connection& connection, std::size_t first_bytes);
  void answer(Connection& connection);
  bool apply_requests(Connection& connection);
  void deliver(Connection& connection);
  void send(Connection& connection, std::string_view bytes, std::string_view large_value = {});
  void account(Connection& connection);
  void look_at_memory();
  void drop_largest();
  bool has_room_for(tcp::socket& socket) const;
  void tell_full();
  static void expect_greeting(const std::shared_ptr<Core>& self, ConnectionId id);
  static void watch_greetings(const std::shared_ptr<Core>& self);
  void end_late_greetings(Time now);
  void refuse(Connection& connection, const Error& error);
  static void report_refusal(const Connection& connection, const Error& error);
  void drop(Connection& connection);
  void drop_all();

  asio::io_context& loop_;
  StoreLimits limits_;  // less than given while memory is short
  MemoryBound memory_{limits_};
  Admits admits_;  // empty: all
  // Never empty; optional so that reset() can make a new one in place.
  std::optional<Table> table_;
  std::unordered_map<ConnectionId, std::shared_ptr<Connection>> connections_;
  std::vector<std::shared_ptr<Listener>> listeners_;  // two owners: this and each one's coroutine
  Replies outbox_;                                    // scratch of one turn
  // Used between two suspensions only, so that no two connections meet in it.
  std::vector<char> shared_read_ = std::vector<char>(kSharedReadBytes);
  std::size_t buffered_bytes_ = 0;
  ConnectionId next_id_ = 1;
  const int first_reserved_ = first_reserved_descriptor();
  std::deque<Greeting> greetings_;  // oldest first; each stays until its time, also after VALIDATE
  asio::steady_timer greeting_timer_;
  bool full_logged_ = false;  // a refusal was logged; one line an attempt is enough
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
  if (self->closed_ || (self->admits_ && !self->admits_(socket.native_handle()))) return;
  if (!self->has_room_for(socket)) return self->tell_full();
  const auto connection =
      std::make_shared<Connection>(self->next_id_++, std::move(socket), self->limits_);
  self->connections_.emplace(connection->id, connection);
  expect_greeting(self, connection->id);
  spawn(self->loop_, "store peer", converse(self, connection));
}

// A number from first_reserved_ on says that all below are in use (base/net/descriptors.h).
bool Server::Core::has_room_for(tcp::socket& socket) const {
  return connections_.size() < limits_.connections && socket.native_handle() < first_reserved_;
}

void Server::Core::tell_full() {
  if (full_logged_) return;
  full_logged_ = true;
  const bool by_limit = connections_.size() >= limits_.connections;
  log::warning(fmt::format("store: connections are refused: {} are open, {}", connections_.size(),
                           by_limit ? "the limit"
                                    : "and the other descriptors of this process are kept for the "
                                      "launcher; raise the hard limit (ulimit -Hn)"));
}

// One timer for all. The limit is the same for all, so the oldest connection is due first.
void Server::Core::expect_greeting(const std::shared_ptr<Core>& self, ConnectionId id) {
  self->greetings_.push_back({id, std::chrono::steady_clock::now() + self->limits_.handshake});
  if (self->greetings_.size() == 1) watch_greetings(self);
}

void Server::Core::watch_greetings(const std::shared_ptr<Core>& self) {
  self->greeting_timer_.expires_at(self->greetings_.front().until);
  // Weak: the timer must not keep the core of a destroyed server alive.
  self->greeting_timer_.async_wait([watched = std::weak_ptr(self)](const error_code& cancelled) {
    const auto core = watched.lock();
    if (cancelled || !core) return;
    core->end_late_greetings(std::chrono::steady_clock::now());
    if (!core->greetings_.empty()) watch_greetings(core);
  });
}

void Server::Core::end_late_greetings(Time now) {
  while (!greetings_.empty() && greetings_.front().until <= now) {
    const auto late = connections_.find(greetings_.front().id);
    greetings_.pop_front();
    if (late == connections_.end() || late->second->decoder.validated()) continue;
    const auto keep_alive = late->second;
    error_code ignored;
    // Unread bytes mean that we are late (a stopped machine), not the client.
    if (keep_alive->socket.available(ignored) > 0) {
      greetings_.push_back({keep_alive->id, now + limits_.handshake});
      continue;
    }
    report_refusal(*keep_alive, {ErrorCode::kTimedOut, fmt::format("no VALIDATE within {} ms",
                                                                   limits_.handshake.count())});
    drop(*keep_alive);
  }
}

void Server::Core::reset() {
  drop_all();
  full_logged_ = false;
  for (const auto& listener : listeners_) listener->drop_queue();
  // The table comes last: each drop() still speaks to it.
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
  // A copy of the pointer, since drop() erases the one in the map.
  while (!connections_.empty()) drop(*std::shared_ptr<Connection>(connections_.begin()->second));
  greetings_.clear();
  greeting_timer_.cancel();
}

// Reads, answers, and sends what the kernel did not take at once, until one side ends it.
asio::awaitable<void> Server::Core::converse(std::shared_ptr<Core> self,
                                             std::shared_ptr<Connection> connection) {
  while (connection->open) {
    if (!connection->unsent.empty()) {
      co_await send_rest(*self, *connection);
    } else if (connection->requests_left) {
      // Others first: a client that reads fast could keep us here for long.
      co_await asio::post(self->loop_, asio::use_awaitable);
      if (connection->open) self->answer(*connection);
    } else {
      // Here and not in a coroutine of its own: its frame would be memory of every idle connection.
      const auto [failure, bytes] = co_await connection->socket.async_read_some(
          asio::buffer(connection->first_read), kAsTuple);
      self->received(*connection, failure, bytes);
    }
  }
}

// `failure` and `bytes` are what the read into `first_read` ended with.
void Server::Core::received(Connection& connection, const error_code& failure, std::size_t bytes) {
  if (!connection.open) return;
  // send() cancelled the read: there are answers to send first.
  if (failure == asio::error::operation_aborted) return;
  if (failure) return drop(connection);
  connection.decoder.feed(take_chunk(connection, bytes));
  answer(connection);
}

asio::awaitable<void> Server::Core::send_rest(Core& self, Connection& connection) {
  // Only waits and does not write: `unsent` may grow, and so move, meanwhile.
  const auto [failure] = co_await connection.socket.async_wait(tcp::socket::wait_write, kAsTuple);
  if (!connection.open) co_return;
  error_code error = failure;
  if (!error)
    connection.sent += connection.socket.write_some(asio::buffer(connection.unsent_bytes()), error);
  if (error && error != asio::error::would_block) co_return self.drop(connection);
  if (connection.unsent_bytes().empty()) {
    connection.unsent = {};
    connection.sent = 0;
  }
  self.account(connection);
}

// Returns the bytes of one readable event: the first bytes alone. If they filled their buffer, it
// adds all that the kernel holds and the shared buffer takes. The next read meets an error of this
// one again.
std::string_view Server::Core::take_chunk(Connection& connection, std::size_t first_bytes) {
  if (first_bytes < kFirstReadBytes) return {connection.first_read.data(), first_bytes};
  std::memcpy(shared_read_.data(), connection.first_read.data(), first_bytes);
  error_code ignored;
  const std::size_t more =
      connection.socket.read_some(asio::buffer(shared_read_) + first_bytes, ignored);
  return {shared_read_.data(), first_bytes + more};
}

// One turn of a connection. Then one send goes to it and one to each that was woken.
void Server::Core::answer(Connection& connection) {
  outbox_.reply.clear();
  outbox_.large_value = {};
  outbox_.woken.clear();
  connection.requests_left = apply_requests(connection);
  deliver(connection);
  if (outbox_.reply.capacity() > kMiB) outbox_.reply = {};
}

// True if the turn is over, and there may be more requests.
bool Server::Core::apply_requests(Connection& connection) {
  for (int n = 0; n < kRequestsPerTurn && outbox_.bytes() < kLargeValueBytes; ++n) {
    const auto request = connection.decoder.next();
    if (request.has_error()) {
      refuse(connection, request.error());
      return false;
    }
    if (!request->has_value()) return false;
    look_at_memory();
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
    send(connection, outbox_.reply, outbox_.large_value);
    account(connection);
  }
  for (const ConnectionId id : outbox_.woken) {
    const auto woken = connections_.find(id);
    if (woken == connections_.end()) continue;  // dropped meanwhile by send() or account()
    const auto keep_alive = woken->second;
    constexpr char ready_byte = static_cast<char>(Status::kReady);
    send(*keep_alive, {&ready_byte, 1});
  }
}

// Sends what the kernel takes now and keeps the rest for the connection's coroutine. cancel() gets
// that coroutine out of its read.
void Server::Core::send(Connection& connection, std::string_view bytes,
                        std::string_view large_value) {
  if (bytes.empty()) return;
  std::size_t taken = 0;
  if (connection.unsent.empty()) {
    error_code failure;
    const std::array parts{asio::buffer(bytes), asio::buffer(large_value)};
    taken = connection.socket.write_some(parts, failure);
    if (failure && failure != asio::error::would_block) return drop(connection);
    if (taken == bytes.size() + large_value.size()) return;
    connection.socket.cancel(failure);
  }
  const std::size_t of_bytes = std::min(taken, bytes.size());
  connection.unsent.append(bytes.substr(of_bytes)).append(large_value.substr(taken - of_bytes));
}

// Keeps count of the memory that clients make us hold.
void Server::Core::account(Connection& connection) {
  if (!connection.open) return;
  const std::size_t holds = connection.decoder.held_bytes() + connection.unsent.size();
  buffered_bytes_ += holds;
  buffered_bytes_ -= connection.counted;
  connection.counted = holds;
  look_at_memory();
  while (buffered_bytes_ > limits_.buffered_bytes) drop_largest();
}

void Server::Core::look_at_memory() {
  const MemoryBound::MemoryUse held{table_->stored_bytes(), buffered_bytes_};
  if (memory_.is_due(held)) memory_.looked(limits_, held, memory_left());
}

// Drops the largest connection, not the one that passes the limit. Else a hoarder could make all
// others pay.
void Server::Core::drop_largest() {
  const auto largest = std::ranges::max_element(
      connections_, {}, [](const auto& entry) { return entry.second->counted; });
  const auto keep_alive = largest->second;
  report_refusal(*keep_alive,
                 {ErrorCode::kLimit,
                  fmt::format("it holds most, {} bytes, of the {} that all may make us buffer",
                              keep_alive->counted, limits_.buffered_bytes)});
  drop(*keep_alive);
}

// Ends a connection that broke a rule. Answers to its earlier requests are sent as far as the
// kernel takes them.
void Server::Core::refuse(Connection& connection, const Error& error) {
  report_refusal(connection, error);
  if (const auto told = memory_.refused(error, table_->stored_bytes())) log::warning(*told);
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
  buffered_bytes_ -= connection.counted;
  table_->disconnect(connection.id);
  error_code ignored;
  connection.socket.close(ignored);
  connections_.erase(connection.id);  // its coroutine still owns it
  // A descriptor is free again, so listeners that rest may go on.
  for (const auto& listener : listeners_) listener->resume();
}

Server::Server(asio::io_context& loop, StoreLimits limits, Admits admits)
    : core_(std::make_shared<Core>(loop, limits, std::move(admits))) {}
Server::~Server() { core_->close(); }

void Server::serve(tcp::acceptor bound_acceptor) { Core::serve(core_, std::move(bound_acceptor)); }
void Server::adopt(tcp::socket connected) {
  if (prepare(connected)) Core::adopt(core_, std::move(connected));
}
void Server::reset() { core_->reset(); }
void Server::close() { core_->close(); }

std::size_t Server::connections() const { return core_->connections(); }
std::size_t Server::keys() const { return core_->table().key_count(); }
std::size_t Server::stored_bytes() const { return core_->table().stored_bytes(); }
std::size_t Server::waiters() const { return core_->table().waits().registrations(); }

}  // namespace ddprun::store
