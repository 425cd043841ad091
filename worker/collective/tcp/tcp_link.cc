#include "worker/collective/tcp/tcp_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace ddprun::worker {
namespace {

// A call moves so much at most in one direction: both shall go on.
constexpr std::size_t kTurnBytes = std::size_t{512} << 10;

template <typename Plain>
void append(std::vector<std::byte>& bytes, const Plain& plain) {
  const auto* begin = reinterpret_cast<const std::byte*>(&plain);
  bytes.insert(bytes.end(), begin, begin + sizeof plain);
}

template <typename Plain>
Plain read_plain(std::span<const std::byte> bytes) {
  Plain plain;
  std::memcpy(&plain, bytes.data(), sizeof plain);
  return plain;
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

void note_end(TcpEvent& event, const std::string& how) {
  event.kind = TcpEvent::Kind::kEnded;
  event.text = how;
}

// recv() or recvmsg() gave no bytes.
void note_no_bytes(TcpEvent& event, ssize_t got) {
  if (got == 0) note_end(event, "it closed the connection");
  if (got < 0 && !would_block(errno)) note_end(event, std::generic_category().message(errno));
}

// Returns whether a body of that kind may be so long.
bool is_sound(const FrameHead& head) {
  switch (head.kind) {
    case FrameKind::kBegin:
      return head.bytes == sizeof(OperationHead);
    case FrameKind::kData:
      return head.bytes > 0 && head.bytes <= kFrameBytesMax;
    case FrameKind::kReset:
      return head.bytes == sizeof(ResetNote);
    case FrameKind::kAbort:
      return head.bytes <= kReasonBytesMax;
    case FrameKind::kLeave:
      return head.bytes == 0;
  }
  return false;
}

}  // namespace

TcpLink::TcpLink(FileHandle socket) : socket_(std::move(socket)) {}

std::size_t TcpLink::send(TcpOperation& operation, std::size_t peer, TcpEvent& event) {
  if (!std::exchange(begun_, true)) {
    append(pending_, FrameHead{FrameKind::kBegin, sizeof(OperationHead)});
    append(pending_, operation.head());
  }
  std::size_t moved = 0;
  while (event.kind == TcpEvent::Kind::kNone && moved < kTurnBytes) {
    const auto ready = operation.to_send(peer);
    if (frame_left_ == 0 && !ready.empty()) {
      frame_left_ = std::min(ready.size(), kFrameBytesMax);
      append(pending_, FrameHead{FrameKind::kData, static_cast<std::uint32_t>(frame_left_)});
    }
    if (flushed()) break;
    const std::size_t before = pending_.size();
    const std::size_t of_body = send_frame(ready.first(frame_left_), event);
    if (of_body != 0) operation.sent(peer, of_body);
    if (before == pending_.size() && of_body == 0) break;
    moved += before - pending_.size() + of_body;
  }
  return moved;
}

void TcpLink::detach(const TcpOperation& operation, std::size_t peer) {
  const auto rest = operation.to_send(peer).first(frame_left_);
  pending_.insert(pending_.end(), rest.begin(), rest.end());
  frame_left_ = 0;
}

void TcpLink::say(FrameKind kind, std::span<const std::byte> body) {
  append(pending_, FrameHead{kind, static_cast<std::uint32_t>(body.size())});
  pending_.insert(pending_.end(), body.begin(), body.end());
}

// Sends what is queued, and `body` behind it. Returns how much of `body` went.
std::size_t TcpLink::send_frame(std::span<const std::byte> body, TcpEvent& event) {
  if (pending_.empty() && body.empty()) return 0;
  std::array<iovec, 2> parts{iovec{pending_.data(), pending_.size()},
                             iovec{const_cast<std::byte*>(body.data()), body.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t done = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (done < 0) {
    if (!would_block(errno)) note_end(event, std::generic_category().message(errno));
    return 0;
  }
  const std::size_t queued = std::min(static_cast<std::size_t>(done), pending_.size());
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(queued));
  const std::size_t of_body = static_cast<std::size_t>(done) - queued;
  frame_left_ -= of_body;
  return of_body;
}

// Reads behind what is buffered. False if nothing is there now.
bool TcpLink::fill(TcpEvent& event) {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  const ssize_t got =
      ::recv(socket_.get(), buffer_.data() + end_, buffer_.size() - end_, MSG_DONTWAIT);
  if (got <= 0) {
    note_no_bytes(event, got);
    return false;
  }
  end_ += static_cast<std::size_t>(got);
  return true;
}

// The head of the next frame, once that is here; but for data its body must be here, too. It stays
// buffered.
bool TcpLink::next_frame(FrameHead& head, TcpEvent& event) {
  while (true) {
    if (buffered().size() >= sizeof head) {
      head = read_plain<FrameHead>(buffered());
      if (!is_sound(head)) {
        event.kind = TcpEvent::Kind::kNonsense;
        return false;
      }
      if (head.kind == FrameKind::kData || buffered().size() >= sizeof head + head.bytes)
        return true;
    }
    if (!fill(event)) return false;
  }
}

// Takes a frame that is no data out of the buffer. `operation` is null in a reset.
void TcpLink::take_word(const FrameHead& head, TcpOperation* operation, std::size_t peer,
                        TcpEvent& event) {
  using Kind = TcpEvent::Kind;
  const auto body = buffered().subspan(sizeof head, head.bytes);
  begin_ += sizeof head + head.bytes;
  if (head.kind == FrameKind::kBegin && operation != nullptr) {
    event.head = last_ = read_plain<OperationHead>(body);
    if (met_) event.kind = Kind::kNonsense;
    if (!met_ && !operation->meet(peer, event.head)) event.kind = Kind::kOther;
    met_ = true;
  } else if (head.kind == FrameKind::kReset) {
    event.kind = Kind::kReset;
    event.reset = read_plain<ResetNote>(body);
  } else if (head.kind == FrameKind::kAbort) {
    event.kind = Kind::kAbort;
    event.text.assign(reinterpret_cast<const char*>(body.data()), body.size());
  } else if (head.kind == FrameKind::kLeave) {
    event.kind = Kind::kLeft;
  }
}

// Begins a frame of data, or takes any other as a whole. `operation` is null in a reset.
void TcpLink::take_frame(const FrameHead& head, TcpOperation* operation, std::size_t peer,
                         TcpEvent& event) {
  if (head.kind != FrameKind::kData) return take_word(head, operation, peer, event);
  if (operation != nullptr && !met_) event.kind = TcpEvent::Kind::kNonsense;
  begin_ += sizeof head;
  body_left_ = head.bytes;
}

// Bytes of the data frame under way. They are the buffered ones, else the kernel's, and then also
// some of the next frame.
std::size_t TcpLink::take_data(std::span<std::byte> place, TcpEvent& event) {
  place = place.first(std::min(place.size(), body_left_));
  if (begin_ != end_) {
    const std::size_t bytes = std::min(place.size(), end_ - begin_);
    std::memcpy(place.data(), buffer_.data() + begin_, bytes);
    begin_ += bytes;
    body_left_ -= bytes;
    return bytes;
  }
  const bool whole = place.size() == body_left_;
  std::array<iovec, 2> parts{iovec{place.data(), place.size()},
                             iovec{buffer_.data(), whole ? buffer_.size() : 0}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (got <= 0) {
    note_no_bytes(event, got);
    return 0;
  }
  const std::size_t bytes = std::min(static_cast<std::size_t>(got), place.size());
  begin_ = 0;
  end_ = static_cast<std::size_t>(got) - bytes;
  body_left_ -= bytes;
  return bytes;
}

// Moves data to its place in the operation. Returns 0 if nothing can be moved now.
std::size_t TcpLink::receive_data(TcpOperation& operation, std::size_t peer, TcpEvent& event) {
  const auto place = operation.to_receive(peer);
  if (place.empty()) {
    if (operation.all_received(peer)) event.kind = TcpEvent::Kind::kNonsense;
    return 0;
  }
  const std::size_t bytes = take_data(place, event);
  if (bytes != 0) operation.received(peer, bytes);
  return bytes;
}

std::size_t TcpLink::receive(TcpOperation& operation, std::size_t peer, TcpEvent& event) {
  std::size_t moved = 0;
  while (event.kind == TcpEvent::Kind::kNone && moved < kTurnBytes) {
    if (body_left_ != 0) {
      const std::size_t bytes = receive_data(operation, peer, event);
      if (bytes == 0) break;
      moved += bytes;
      continue;
    }
    // Later bytes belong to the next operation.
    if (received(operation, peer)) break;
    FrameHead head{};
    if (!next_frame(head, event)) break;
    take_frame(head, &operation, peer, event);
    if (head.kind != FrameKind::kData) moved += sizeof head;
  }
  return moved;
}

void TcpLink::discard(TcpEvent& event) {
  std::array<std::byte, 65536> nowhere;
  while (event.kind == TcpEvent::Kind::kNone) {
    if (body_left_ != 0) {
      if (take_data(nowhere, event) == 0) return;
      continue;
    }
    FrameHead head{};
    if (!next_frame(head, event)) return;
    take_frame(head, nullptr, 0, event);
  }
}

short TcpLink::events(TcpOperation& operation, std::size_t peer) const {
  short events = 0;
  if (!flushed() || !begun_ || !operation.to_send(peer).empty()) events |= POLLOUT;
  if (!met_ || (!operation.all_received(peer) && !operation.to_receive(peer).empty()))
    events |= POLLIN;
  return events;
}

void TcpLink::end_sending() { ::shutdown(socket_.get(), SHUT_WR); }

}  // namespace ddprun::worker
