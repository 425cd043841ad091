#include "rendezvous/control/node_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <string>
#include <utility>

#include "base/file_handle.h"
#include "base/log.h"
#include "rendezvous/control/codec.h"
#include "rendezvous/control/local_socket.h"

namespace ddprun::rendezvous {
namespace {

using boost::asio::local::stream_protocol;
using boost::system::error_code;

constexpr std::size_t kMostQuestionBytes = std::size_t{64} * 1024;
constexpr std::chrono::seconds kNextAccept{1};

}  // namespace

// One connection. It keeps itself alive by its handlers.
class NodeSocket::Caller : public std::enable_shared_from_this<Caller> {
 public:
  Caller(boost::asio::io_context& loop, stream_protocol::socket socket, std::shared_ptr<int> count)
      : socket_(std::move(socket)), timer_(loop), count_(std::move(count)) {
    ++*count_;
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  ~Caller() { --*count_; }

  void serve(const Handler& handler, const std::weak_ptr<const bool>& alive) {
    limit_time();
    boost::asio::async_read(
        socket_, boost::asio::dynamic_buffer(question_, kMostQuestionBytes),
        [self = shared_from_this(), handler, alive](const error_code& ended, std::size_t) {
          self->timer_.cancel();
          if (ended != boost::asio::error::eof || alive.expired()) return;
          const auto question = decode_question(self->question_);
          if (!question)
            return self->answer({ControlOutcome::kRefused, question.error().message()});
          handler(*question, [self](const ControlAnswer& answer) { self->answer(answer); });
        });
  }

 private:
  void limit_time() {
    timer_.expires_after(kTalkLimit);
    timer_.async_wait([self = shared_from_this()](const error_code& cancelled) {
      error_code ignored;
      if (!cancelled) self->socket_.close(ignored);
    });
  }

  void answer(const ControlAnswer& answer) {
    limit_time();
    answer_ = encode(answer).SerializeAsString();
    boost::asio::async_write(socket_, boost::asio::buffer(answer_),
                             [self = shared_from_this()](const error_code&, std::size_t) {
                               error_code ignored;
                               self->timer_.cancel();
                               self->socket_.close(ignored);
                             });
  }

  stream_protocol::socket socket_;
  boost::asio::steady_timer timer_;
  const std::shared_ptr<int> count_;
  std::string question_;
  std::string answer_;
};

NodeSocket::NodeSocket(boost::asio::io_context& loop, pid_t pid, Handler handler, int most_callers)
    : loop_(loop),
      handler_(std::move(handler)),
      most_callers_(most_callers),
      acceptor_(loop),
      pause_(loop) {
  const auto listening = listen_locally(new_node_socket_name(pid));
  if (!listening) {
    log::info(fmt::format("no socket for ddpctl on this host: {}", listening.error().message()));
    return;
  }
  acceptor_.assign(stream_protocol(), *listening);
  accept();
}

NodeSocket::~NodeSocket() {
  error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
}

void NodeSocket::accept() {
  acceptor_.async_accept([this, alive = std::weak_ptr(alive_)](const error_code& failed,
                                                               stream_protocol::socket socket) {
    if (alive.expired() || failed == boost::asio::error::operation_aborted) return;
    if (failed) return accept_later();
    const auto caller = peer_of(socket.native_handle());
    if (caller && may_order(*caller, ::geteuid()) && *callers_ < most_callers_)
      std::make_shared<Caller>(loop_, std::move(socket), callers_)->serve(handler_, alive);
    accept();
  });
}

// No descriptor is free, mostly: at once it would fail again.
void NodeSocket::accept_later() {
  pause_.expires_after(kNextAccept);
  pause_.async_wait([this, alive = std::weak_ptr(alive_)](const error_code& failed) {
    if (!alive.expired() && !failed) accept();
  });
}

// ---- who asks ----

namespace {

using Clock = std::chrono::steady_clock;

bool wait_for(int fd, short event, Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  pollfd one{.fd = fd, .events = event, .revents = 0};
  return left > 0 && ::poll(&one, 1, static_cast<int>(left)) > 0;
}

bool send_all(int fd, std::string_view bytes, Clock::time_point end) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    if (sent < 0 && errno != EAGAIN) return false;
    if (sent < 0 && !wait_for(fd, POLLOUT, end)) return false;
  }
  return ::shutdown(fd, SHUT_WR) == 0;
}

// Empty if the other side has not come to its end in time.
std::string read_all(int fd, Clock::time_point end) {
  std::string bytes;
  std::array<char, 16384> part{};
  while (bytes.size() <= kMaxAnswerBytes && wait_for(fd, POLLIN, end)) {
    const ssize_t got = ::recv(fd, part.data(), part.size(), 0);
    if (got == 0) return bytes;
    if (got < 0 && errno != EAGAIN) return {};
    bytes.append(part.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
  return {};
}

}  // namespace

ControlAnswer ask_node(int fd, const ControlQuestion& question, std::chrono::milliseconds limit) {
  const FileHandle connection(fd);
  const auto end = Clock::now() + limit;
  control::v2::Answer message;
  const bool is_sent = send_all(fd, encode(question), end);
  const std::string bytes = is_sent ? read_all(fd, end) : std::string();
  if (!bytes.empty() && message.ParseFromString(bytes)) {
    if (auto answer = decode(message)) return *std::move(answer);
  }
  return {ControlOutcome::kUnreachable, "its ddprun does not answer"};
}

}  // namespace ddprun::rendezvous
