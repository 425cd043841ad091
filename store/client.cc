#include "store/client.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <thread>

#include "base/assert.h"
#include "base/blocking_wait.h"
#include "base/random_number.h"

namespace ddprun::store {
namespace {

using std::chrono::steady_clock;

// Pauses between tries to connect. The first is short, since an agent's store is there before its
// workers. They grow and are random, so that thousands of clients do not come back at once.
constexpr std::chrono::milliseconds kFirstPause{20};
constexpr std::chrono::milliseconds kLongestPause{2000};
constexpr double kPauseGrowth = 1.5;
// How long we wait for the answer to CANCEL_WAIT. The caller's own limit has just passed, so this
// comes on top of it.
constexpr std::chrono::seconds kCancelLimit{5};
// Keys named in an error message; a list may have 131,072.
constexpr std::size_t kKeysNamed = 4;

// Each pause is a random 0.5 to 1.5 times a base; the base grows up to kLongestPause.
class Pauses {
 public:
  std::chrono::duration<double, std::milli> next() {
    const double pause = pause_ms_ * std::uniform_real_distribution(0.5, 1.5)(random_);
    pause_ms_ = std::min(pause_ms_ * kPauseGrowth, static_cast<double>(kLongestPause.count()));
    return std::chrono::duration<double, std::milli>(pause);
  }

 private:
  double pause_ms_ = static_cast<double>(kFirstPause.count());
  std::minstd_rand random_{static_cast<std::minstd_rand::result_type>(random_number())};
};

// Says from time to time that a client still tries to connect, and why. Says nothing without `who`.
class ConnectNotice {
 public:
  ConnectNotice(const std::string& who, const std::string& server) : who_(who), server_(server) {}

  void set_reason(std::string why) { why_ = std::move(why); }
  // Returns until when to block.
  Deadline tell(Deadline until) {
    if (who_.empty()) return until;
    wait_.tell([&] { return fmt::format("{} connects to the store {}: {}", who_, server_, why_); });
    return wait_.until(until);
  }

 private:
  const std::string& who_;
  const std::string& server_;
  BlockingWait wait_;
  std::string why_ = "no answer";
};

// The first keys of a list in quotes, and how many more there are.
std::string describe(std::span<const std::string_view> keys) {
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kKeysNamed); ++i)
    text += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", keys[i]);
  if (keys.size() > kKeysNamed) text += fmt::format(" and {} more", keys.size() - kKeysNamed);
  return text;
}

// Names the action of a request, for error messages; in the order of Op.
std::string_view verb(Op op) {
  static constexpr std::array<std::string_view, 19> verbs = {
      "connect",   "set",          "compare_set", "get",    "add",
      "check",     "wait for",     "num_keys",    "delete", "append",
      "multi_get", "multi_set",    "cancel wait", "ping",   "queue_push",
      "queue_pop", "queue_length", "list_keys",   "barrier"};
  return verbs.at(static_cast<std::size_t>(op));
}

std::vector<std::string_view> views(std::span<const std::string> strings) {
  return {strings.begin(), strings.end()};
}

}  // namespace

Result<Client> Client::connect(const std::string& host, std::uint16_t port, Duration limit,
                               const std::string& who) {
  const Deadline until = steady_clock::now() + limit;
  const std::string server = fmt::format("{}:{}", host, port);
  Pauses pauses;
  ConnectNotice notice(who, server);
  const auto tell = [&] { return notice.tell(until); };
  Error failure;
  for (;;) {
    auto socket = BlockingSocket::connect(host, port, tell());
    if (socket.has_value()) {
      Client client(server, std::move(*socket), limit);
      notice.set_reason("somebody takes connections there, and does not answer");
      const auto greeted = client.shake_hands(until, tell);
      if (greeted.has_value()) return client;
      failure = greeted.error();
    } else {
      failure = socket.error();
      // A host that does not exist will not appear while we wait. All other failures may pass.
      if (failure.code() == ErrorCode::kNotFound)
        return Error(failure.code(),
                     fmt::format("connect to store {}: {}", server, failure.message()));
    }
    if (failure.code() != ErrorCode::kTimedOut) notice.set_reason(failure.message());
    tell();
    const auto pause = pauses.next();
    if (steady_clock::now() + pause >= until)
      return Error(ErrorCode::kTimedOut,
                   fmt::format("connect to store {}: not possible in {} ms; last: {}", server,
                               limit.count(), failure.message()));
    std::this_thread::sleep_for(pause);
  }
}

// VALIDATE and PING leave in one segment. PyTorch's server loses its place if VALIDATE comes in two
// parts. And only an answer to PING shows that somebody serves the port. The kernel accepts
// connections for a process that hangs.
Result<void> Client::shake_hands(Deadline until, const std::function<Deadline()>& tell) {
  request_.clear();
  encode({Op::kValidate, kMagic, {}}, request_);
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  encode({Op::kPing, nonce, {}}, request_);
  if (auto sent = socket_->send(request_, until); sent.has_error()) return sent;
  while (!socket_->wait_readable(tell()) && steady_clock::now() < until) {
  }
  std::array<char, sizeof(nonce)> answer{};
  if (auto received = socket_->receive(answer, until); received.has_error()) return received;
  if (get_u32({answer.data(), answer.size()}) != nonce)
    return Error(ErrorCode::kProtocol, "what answers there is not a TCPStore");
  return {};
}

Result<void> Client::set(std::string_view key, std::string_view value) {
  return send_only(Op::kSet, std::array{key, value});
}

Result<void> Client::append(std::string_view key, std::string_view tail) {
  return send_only(Op::kAppend, std::array{key, tail});
}

Result<void> Client::multi_set(std::span<const std::pair<std::string, std::string>> pairs) {
  std::vector<std::string_view> fields;
  fields.reserve(2 * pairs.size());
  for (const auto& [key, value] : pairs) {
    fields.push_back(key);
    fields.push_back(value);
  }
  return send_only(Op::kMultiSet, fields);
}

Result<void> Client::queue_push(std::string_view queue, std::string_view value) {
  return send_only(Op::kQueuePush, std::array{queue, value});
}

Result<void> Client::ping() {
  const Deadline until = deadline();
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  if (auto sent = send(Op::kPing, nonce, {}, until); sent.has_error()) return sent;
  std::array<char, sizeof(nonce)> answer{};
  if (auto received = receive(answer, until); received.has_error()) return received;
  if (get_u32({answer.data(), answer.size()}) == nonce) return {};
  return broken({ErrorCode::kProtocol, "the answer belongs to another request"});
}

// WAIT first, because GET answers a missing key with an empty value.
Result<std::string> Client::get(std::string_view key) {
  const std::array keys{key};
  if (auto there = wait_views(keys, limit_); there.has_error()) return there.error();
  const Deadline until = deadline();
  if (auto sent = send(Op::kGet, 0, keys, until); sent.has_error()) return sent.error();
  return read_bytes(until);
}

Result<std::vector<std::string>> Client::multi_get(std::span<const std::string> keys) {
  const auto fields = views(keys);
  if (auto there = wait_views(fields, limit_); there.has_error()) return there.error();
  const Deadline until = deadline();
  if (auto sent = send(Op::kMultiGet, 0, fields, until); sent.has_error()) return sent.error();
  return read_list(keys.size(), until);
}

Result<void> Client::wait(std::span<const std::string> keys, Duration limit) {
  return wait_views(views(keys), limit);
}

Result<void> Client::wait(std::string_view key, Duration limit) {
  return wait_views(std::array{key}, limit);
}

// `limit` may be 0, to look just once. The request itself still has the client's own limit: half a
// request would cost the connection.
Result<void> Client::wait_views(Fields keys, Duration limit) {
  const Deadline until = steady_clock::now() + limit;
  if (auto sent = send(Op::kWait, 0, keys, std::max(until, deadline())); sent.has_error())
    return sent;
  if (!socket_->wait_readable(until)) return cancel_wait(keys, limit);
  const auto status = read_status(std::max(until, deadline()));
  if (status.has_error()) return status.error();
  if (*status == static_cast<char>(Status::kReady)) return {};
  return broken({ErrorCode::kProtocol, "the answer belongs to another request"});
}

// Takes a wait back after its time. The server's kReady may have been on its way when we sent
// CANCEL_WAIT. Then two bytes come, kReady and kNotReady, and the keys are there after all. Both
// must be read, else the second would be taken for the next answer.
Result<void> Client::cancel_wait(Fields keys, Duration limit) {
  const Deadline until = steady_clock::now() + kCancelLimit;
  if (auto sent = send(Op::kCancelWait, 0, {}, until); sent.has_error()) return sent;
  auto status = read_status(until);
  if (status.has_error()) return status.error();
  const bool ready = *status == static_cast<char>(Status::kReady);
  if (ready) status = read_status(until);
  if (status.has_error()) return status.error();
  if (*status != static_cast<char>(Status::kNotReady))
    return broken({ErrorCode::kProtocol, "the answer belongs to another request"});
  if (ready) return {};
  return Error(ErrorCode::kTimedOut, fmt::format("wait for {} at store {}: not there in {} ms",
                                                 describe(keys), server_, limit.count()));
}

Result<std::int64_t> Client::add(std::string_view key, std::int64_t delta) {
  const Deadline until = deadline();
  if (auto sent = send(Op::kAdd, delta, std::array{key}, until); sent.has_error())
    return sent.error();
  return read_number(until);
}

Result<std::string> Client::compare_set(std::string_view key, std::string_view expected,
                                        std::string_view desired) {
  const Deadline until = deadline();
  if (auto sent = send(Op::kCompareSet, 0, std::array{key, expected, desired}, until);
      sent.has_error())
    return sent.error();
  return read_bytes(until);
}

Result<bool> Client::check(std::span<const std::string> keys) {
  const Deadline until = deadline();
  if (auto sent = send(Op::kCheck, 0, views(keys), until); sent.has_error()) return sent.error();
  const auto status = read_status(until);
  if (status.has_error()) return status.error();
  return *status == static_cast<char>(Status::kReady);
}

// The answer is the number of keys removed, 0 or 1.
Result<bool> Client::remove(std::string_view key) {
  const Deadline until = deadline();
  if (auto sent = send(Op::kDelete, 0, std::array{key}, until); sent.has_error())
    return sent.error();
  const auto removed = read_number(until);
  if (removed.has_error()) return removed.error();
  return *removed != 0;
}

Result<std::int64_t> Client::num_keys() {
  const Deadline until = deadline();
  if (auto sent = send(Op::kNumKeys, 0, {}, until); sent.has_error()) return sent.error();
  return read_number(until);
}

Result<std::vector<std::string>> Client::list_keys() {
  const Deadline until = deadline();
  if (auto sent = send(Op::kListKeys, 0, {}, until); sent.has_error()) return sent.error();
  const auto count = read_number(until);
  if (count.has_error()) return count.error();
  return read_list(static_cast<std::size_t>(*count), until);
}

Result<std::int64_t> Client::queue_length(std::string_view queue) {
  const Deadline until = deadline();
  if (auto sent = send(Op::kQueueLength, 0, std::array{queue}, until); sent.has_error())
    return sent.error();
  return read_number(until);
}

// The first number is the length before the pop. A value follows only if it is above 0.
Result<std::optional<std::string>> Client::queue_pop(std::string_view queue) {
  const Deadline until = deadline();
  if (auto sent = send(Op::kQueuePop, 0, std::array{queue}, until); sent.has_error())
    return sent.error();
  const auto length = read_number(until);
  if (length.has_error()) return length.error();
  if (*length <= 0) return std::optional<std::string>{};
  auto value = read_bytes(until);
  if (value.has_error()) return value.error();
  return std::optional(std::move(*value));
}

// `doing_` names only the first key: it is made for every request, also with 131,072 keys.
Result<void> Client::send(Op op, std::int64_t number, Fields fields, Deadline until) {
  doing_ = fmt::format("{}{}{}", verb(op), fields.empty() ? "" : " ",
                       describe(fields.first(std::min<std::size_t>(fields.size(), 1))));
  if (!socket_)
    return Error(ErrorCode::kUnavailable,
                 fmt::format("{} at store {}: the connection was closed after an earlier error",
                             doing_, server_));
  request_.clear();
  encode({op, number, fields}, request_);
  if (auto sent = socket_->send(request_, until); sent.has_error()) return broken(sent.error());
  return {};
}

Result<void> Client::send_only(Op op, Fields fields) { return send(op, 0, fields, deadline()); }

Result<char> Client::read_status(Deadline until) {
  std::array<char, 1> status{};
  if (auto received = receive(status, until); received.has_error()) return received.error();
  return status[0];
}

Result<std::int64_t> Client::read_number(Deadline until) {
  std::array<char, sizeof(std::uint64_t)> bytes{};
  if (auto received = receive(bytes, until); received.has_error()) return received.error();
  return static_cast<std::int64_t>(get_u64({bytes.data(), bytes.size()}));
}

Result<std::string> Client::read_bytes(Deadline until) {
  const auto size = read_number(until);
  if (size.has_error()) return size.error();
  // A length that no server sends means that these bytes are no answer. Refused before memory is
  // taken for it.
  if (*size < 0 || static_cast<std::uint64_t>(*size) > kReplyBytes)
    return broken(
        {ErrorCode::kLimit, fmt::format("value of {} bytes: at most {}", *size, kReplyBytes)});
  std::string bytes(static_cast<std::size_t>(*size), '\0');
  if (auto received = receive(bytes, until); received.has_error()) return received.error();
  return bytes;
}

Result<std::vector<std::string>> Client::read_list(std::size_t count, Deadline until) {
  // No reserve(): `count` may come from the peer.
  std::vector<std::string> list;
  for (std::size_t i = 0; i < count; ++i) {
    auto item = read_bytes(until);
    if (item.has_error()) return item.error();
    list.push_back(std::move(*item));
  }
  return list;
}

Result<void> Client::receive(std::span<char> into, Deadline until) {
  DDPRUN_ASSERT(socket_.has_value());
  if (auto received = socket_->receive(into, until); received.has_error())
    return broken(received.error());
  return {};
}

// Closes the connection. An answer to this request may still come, and a later request must not
// take it for its own. The message says what was attempted, where, and what happened.
Error Client::broken(const Error& cause) {
  socket_.reset();
  return {cause.code(), fmt::format("{} at store {}: {}", doing_, server_, cause.message())};
}

}  // namespace ddprun::store
