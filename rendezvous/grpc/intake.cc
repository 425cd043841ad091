#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "rendezvous/grpc/connections.h"
#include "rendezvous/trust/clear_refusal.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using namespace asio::experimental::awaitable_operators;  // NOLINT(google-build-using-namespace):
                                                          // operator||

constexpr auto kLookWhileWaiting = 20ms;
constexpr auto kLookWhileServing = 1000ms;
constexpr auto kLookAtBeginners = 20ms;
// The more there are, the less often it looks at them. One costs the kernel some 0.2 us, and one
// that is served some 1 us.
constexpr auto kLookAtOneBeginner = 10us;
constexpr auto kLookAtOneWaiting = 100us;
constexpr auto kLookAtWaitingAtLast = 1000ms;
constexpr auto kLookAtOneServed = 100us;
constexpr auto kGreetAfter = 1000ms;
// A node sends its beginning at once.
constexpr auto kBeginningLimit = 10'000ms;
constexpr std::size_t kTlsRecordHead = 5;  // bytes; the last two are the record's length
// So many that come in clear where TLS is wanted are told so. The others are closed without a word.
constexpr int kMostClearPeers = 64;
constexpr auto kClearPeerLimit = 2000ms;

// The peer has ended the connection. Bytes that it sent before may be there still.
bool is_gone(int fd) {
  pollfd one{.fd = fd, .events = POLLRDHUP, .revents = 0};
  return ::poll(&one, 1, 0) == 1;
}

// Those at which what is asked of each has happened. One question to the kernel for all of them.
std::unordered_set<int> which_of(std::vector<pollfd> fds) {
  std::unordered_set<int> found;
  if (::poll(fds.data(), fds.size(), 0) <= 0) return found;
  for (const pollfd& one : fds)
    if (one.revents != 0) found.insert(one.fd);
  return found;
}

// It has sent all that its side begins with, or as much as the kernel may hold of it.
bool has_begun(int fd, Connections::Way way) {
  std::array<std::uint8_t, kHttp2Preface.size() + Http2Head().size()> head{};
  const auto peeked = ::recv(fd, head.data(), head.size(), MSG_PEEK | MSG_DONTWAIT);
  if (peeked <= 0) return true;  // gone
  const auto seen = static_cast<std::size_t>(peeked);
  if (way == Connections::Way::kClear || seen < kTlsRecordHead) return seen == head.size();
  int waiting = 0;
  if (::ioctl(fd, FIONREAD, &waiting) < 0) return true;
  const auto wanted = kTlsRecordHead + (std::size_t{head[3]} << 8U) + head[4];
  return static_cast<std::size_t>(waiting) >= std::min<std::size_t>(wanted, 4096);
}

// Sends the refusal of a peer, and reads on until it goes. Unread bytes would make a close a reset,
// and the peer might never read the answer.
asio::awaitable<void> refuse(asio::posix::stream_descriptor peer) {
  asio::steady_timer timer(peer.get_executor());
  const auto until = std::chrono::steady_clock::now() + kClearPeerLimit;
  ClearRefusal refusal;
  std::string out = ClearRefusal::greeting();
  std::array<char, 4096> in{};
  for (std::size_t read = 0; read <= 2 * kClearRefusalReads;) {
    // A peer whose socket takes no few bytes is none of ours.
    if (!out.empty() &&
        ::send(peer.native_handle(), out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
      co_return;
    const auto left = until - std::chrono::steady_clock::now();
    const auto got = co_await (peer.async_read_some(asio::buffer(in), kAsTuple) ||
                               expires(timer, std::max(left, decltype(left)::zero())));
    if (got.index() != 0) co_return;
    const auto [error, size] = std::get<0>(got);
    if (error) co_return;
    read += size;
    const bool was_done = refusal.is_done();
    out = refusal.answer({in.data(), size});
    if (refusal.is_done() && out.empty() && !was_done) co_return;
  }
}

}  // namespace

Intake::Intake(boost::asio::io_context& loop, Options options, Connections& connections,
               Refusals& refusals, Serve serve)
    : loop_(loop),
      options_(options),
      connections_(connections),
      refusals_(refusals),
      serve_(std::move(serve)),
      unproven_(options.unproven),
      alarm_(loop, [this] { look(); }) {}

Intake::~Intake() {
  for (const auto& [fd, one] : waiting_) ::close(fd);
  for (const Beginner& one : beginners_) ::close(one.fd);
}

void Intake::take(int fd, Connections::Way way) {
  const bool is_tls = way == Connections::Way::kTls;
  if (options_.wants_tls && !is_tls) return refuse_clear(fd);
  if (has_begun(fd, way)) return enter(fd, way);
  const auto now = std::chrono::steady_clock::now();
  beginners_.push_back({fd, way, now + kBeginningLimit});
  if (beginners_.size() > options_.unproven.waiting) {
    ::close(beginners_.front().fd);
    beginners_.pop_front();
  }
  alarm_.set_no_later_than(now + look_at_beginners_every());
}

void Intake::enter(int fd, Connections::Way way) {
  const bool is_tls = way == Connections::Way::kTls;
  Waiting& one = waiting_[fd];
  one = {way, std::chrono::steady_clock::now(), Connections::address_of(fd)};
  unproven_.arrived(fd, one.address,
                    is_tls ? UnprovenConnections::Wire::kTls : UnprovenConnections::Wire::kClear);
  serve_next();
}

void Intake::admitted(const std::string& peer) {
  const int fd = connections_.admitted(peer);
  unproven_.proved(fd);
  // Not at once. The successors of those that prove themselves in one turn of the loop go to gRPC
  // together. That costs its threads less.
  if (unproven_.is_waited()) alarm_.set_no_later_than(std::chrono::steady_clock::now());
}

void Intake::serve_next() {
  const auto now = std::chrono::steady_clock::now();
  while (const auto fd = unproven_.next(now)) {
    const Waiting one = waiting_.extract(*fd).mapped();
    // One that came just now had sent its beginning a moment ago. If others wait, it must not take
    // their place in vain.
    const bool is_fresh = now <= one.since + kLookWhileWaiting;
    if ((!is_fresh || unproven_.is_waited()) && is_gone(*fd)) {
      unproven_.was_gone(*fd);
      ::close(*fd);
      continue;
    }
    serve(*fd, one);
  }
  for (const int fd : unproven_.too_many()) {
    waiting_.erase(fd);
    ::close(fd);
  }
  alarm_.set_no_later_than(now + (unproven_.is_waited() ? kLookWhileWaiting : kLookWhileServing));
}

void Intake::serve(int fd, const Waiting& one) {
  if (const auto prepared = Connections::prepare(fd); prepared.has_error()) {
    refusals_.warn("cannot serve a connection: " + prepared.error().message());
    unproven_.ended(fd);
    ::close(fd);
    return;
  }
  // This comes before gRPC gets the descriptor, since gRPC may close it at any time then.
  connections_.add(fd, one.way, one.address);
  serve_(fd, one.way);
}

void Intake::look_at_beginners() {
  const auto now = std::chrono::steady_clock::now();
  if (beginners_.empty() || now < beginners_seen_ + look_at_beginners_every()) return;
  beginners_seen_ = now;
  std::vector<pollfd> all;
  for (const Beginner& one : beginners_) all.push_back({one.fd, POLLIN | POLLRDHUP, 0});
  const auto ready = which_of(std::move(all));
  std::deque<Beginner> begun;
  std::erase_if(beginners_, [&](const Beginner& one) {
    const bool is_ready = ready.contains(one.fd) && has_begun(one.fd, one.way);
    if (is_ready) begun.push_back(one);
    if (!is_ready && one.until <= now) ::close(one.fd);
    return is_ready || one.until <= now;
  });
  for (const Beginner& one : begun) enter(one.fd, one.way);
}

Intake::Time::duration Intake::look_at_beginners_every() const {
  return std::max<Time::duration>(kLookAtBeginners, kLookAtOneBeginner * beginners_.size());
}

void Intake::look_at_waiting() {
  const auto now = std::chrono::steady_clock::now();
  const auto pause =
      std::min<Time::duration>(kLookAtOneWaiting * waiting_.size(), kLookAtWaitingAtLast);
  if (waiting_.empty() || now < waiting_seen_ + pause) return;
  waiting_seen_ = now;
  forget_gone();
  if (unproven_.is_earning()) greet_nodes(now);
}

// A node that hears nothing for 3 s connects anew, which costs both sides more. HTTP/2 lets a side
// send SETTINGS again, so gRPC's follow later. Under a flood no peer is greeted. One that connects
// anew is the newest, and has its turn sooner.
void Intake::greet_nodes(Time now) {
  const std::string greeting = ClearRefusal::greeting();
  for (auto& [fd, one] : waiting_) {
    if (one.is_greeted || one.way == Connections::Way::kTls || now < one.since + kGreetAfter)
      continue;
    one.is_greeted = true;
    ::send(fd, greeting.data(), greeting.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

void Intake::forget_gone() {
  std::vector<pollfd> all;
  for (const auto& [fd, one] : waiting_) all.push_back({fd, POLLRDHUP, 0});
  const auto gone = which_of(std::move(all));
  for (const int fd : unproven_.forget_waiting([&](int id) { return gone.contains(id); })) {
    waiting_.erase(fd);
    ::close(fd);
  }
}

void Intake::look() {
  look_at_beginners();
  if (!beginners_.empty())
    alarm_.set_no_later_than(std::chrono::steady_clock::now() + look_at_beginners_every());
  sweep();
  look_at_waiting();
  for (const int fd : unproven_.overdue(std::chrono::steady_clock::now())) connections_.cut(fd);
  if (unproven_.is_waited()) return serve_next();
  if (unproven_.served_count() > 0)
    alarm_.set_no_later_than(std::chrono::steady_clock::now() + kLookWhileServing);
}

void Intake::sweep() {
  const auto now = std::chrono::steady_clock::now();
  if (now < swept_ + kLookAtOneServed * unproven_.served_count()) return;
  swept_ = now;
  for (const int fd : unproven_.served()) {
    if (connections_.is_open(fd)) continue;
    if (connections_.was_cut(fd))
      refusals_.refused(connections_.address(fd),
                        "it sent more than a node sends before it proves that it knows the token");
    unproven_.ended(fd);
  }
}

void Intake::refuse_clear(int fd) {
  if (*clear_peers_ >= kMostClearPeers) {
    ::close(fd);
    return;
  }
  refusals_.refused(Connections::address_of(fd),
                    "it wants TLS: tls_ca, tls_cert and tls_key in --rdzv-conf");
  asio::posix::stream_descriptor peer(loop_, fd);
  ++*clear_peers_;
  spawn(
      loop_, "refusal of a peer in clear",
      [](asio::posix::stream_descriptor its, std::shared_ptr<int> count) -> asio::awaitable<void> {
        co_await refuse(std::move(its));
        --*count;
      }(std::move(peer), clear_peers_));
}

}  // namespace ddprun::rendezvous
