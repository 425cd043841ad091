#include "worker/collective/tcp/tcp_peers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/duration.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = TcpEvent::Kind;

std::span<const std::byte> bytes_of(const ResetNote& note) {
  return std::as_bytes(std::span(&note, 1));
}

// Until something can be moved, or so long.
void poll_all(std::vector<pollfd>& watched, std::chrono::milliseconds limit) {
  ::poll(watched.data(), watched.size(),
         static_cast<int>(std::max<std::int64_t>(limit.count(), 1)));
}

}  // namespace

TcpPeers::TcpPeers(std::vector<TcpLink> links, std::vector<std::string> hosts,
                   const Options& options)
    : links_(std::move(links)),
      hosts_(std::move(hosts)),
      options_(options),
      resets_(links_.size()) {}

TcpPeers::~TcpPeers() {
  if (!failure_.empty()) return;
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    TcpEvent unheard;
    // After half of a frame a word would be taken for its rest. The peer sees the connection end.
    if (peer == options_.place.rank || !links_[peer].flushed()) continue;
    links_[peer].say(FrameKind::kLeave, {});
    links_[peer].flush(unheard);
  }
}

std::string TcpPeers::name(std::size_t peer) const {
  return fmt::format("rank {} on {}", peer, hosts_[peer]);
}

void TcpPeers::throw_if_failed() const {
  if (!failure_.empty()) throw CollectiveError(failure_);
}

void TcpPeers::start() {
  for (TcpLink& link : links_) link.start();
}

bool TcpPeers::complete(const TcpOperation& operation) const {
  for (std::size_t peer = 0; peer < links_.size(); ++peer)
    if (!complete(operation, peer)) return false;
  return true;
}

// One turn with each peer, in both directions.
std::size_t TcpPeers::pass(TcpOperation& operation) {
  std::size_t moved = 0;
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (!has_part(operation, peer)) continue;
    TcpEvent event;
    moved += links_[peer].send(operation, peer, event);
    // The reason why a peer has gone may lie in front of the end.
    TcpEvent heard;
    moved += links_[peer].receive(operation, peer, heard);
    if (heard.kind != Kind::kNone) event = heard;
    if (event.kind != Kind::kNone) note(operation, peer, event);
  }
  return moved;
}

// A rank that goes on after this error, but for reset(), would send the operation's bytes once
// more.
void TcpPeers::throw_if_reset() const {
  const auto first =
      std::ranges::find_if(resets_, [](const auto& note) { return note.has_value(); });
  if (first == resets_.end()) return;
  throw CollectiveError(fmt::format(
      "rank {} has called reset(), so nothing of before completes: rank {} must call it, too, "
      "or end",
      first - resets_.begin(), options_.place.rank));
}

bool TcpPeers::advance(TcpOperation& operation) {
  throw_if_failed();
  throw_if_reset();
  while (pass(operation) != 0) {
  }
  return complete(operation);
}

void TcpPeers::await(TcpOperation& operation, std::optional<Limit> limit) {
  throw_if_failed();
  throw_if_reset();
  const Doing doing{&operation, limit ? limit->whole : options_.timeout, limit.has_value()};
  const auto patience = limit ? limit->left : options_.timeout;
  auto quiet_since = Clock::now();
  while (!complete(operation)) {
    const bool moved = pass(operation) != 0;
    const auto now = Clock::now();
    if (moved && !limit) quiet_since = now;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(quiet_since + patience - now);
    if (moved && left.count() > 0) continue;
    if (left.count() <= 0 && !complete(operation)) give_up_late(doing);
    if (!complete(operation)) sleep(operation, left);
  }
}

// Sleeps until something can be read or written. A link on which nothing can be done now tells only
// its end. A peer that has given all may still have to take, and one with a full window waits for
// others.
void TcpPeers::sleep(TcpOperation& operation, std::chrono::milliseconds limit) {
  std::vector<pollfd> watched;
  std::vector<std::size_t> peers;
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (complete(operation, peer)) continue;
    short events = links_[peer].events(operation, peer);
    if (links_[peer].received(operation, peer) || events == 0) events |= POLLRDHUP;
    watched.push_back({links_[peer].descriptor(), events, 0});
    peers.push_back(peer);
  }
  poll_all(watched, limit);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if ((watched[i].revents & POLLRDHUP) == 0) continue;
    // The reason may lie in front of the end here, too, behind all bytes of this operation.
    TcpEvent event;
    links_[peers[i]].discard(event);
    if (event.kind == Kind::kNone || event.kind == Kind::kEnded)
      event = {.kind = Kind::kEnded, .text = "it gave up, and its output says why"};
    note(operation, peers[i], event);
  }
}

// Notes a peer's message in place of the operation's bytes: it ends the wait.
void TcpPeers::note(TcpOperation& operation, std::size_t peer, TcpEvent& event) {
  const std::string doing =
      fmt::format("rank {}: {}: {}", options_.place.rank, describe(operation.head()), name(peer));
  switch (event.kind) {
    case Kind::kNone:
      return;
    case Kind::kOther:
      abort(&operation,
            fmt::format("rank {} does {}, {} does {}: they do different things, or train different "
                        "models",
                        options_.place.rank, describe(operation.head()), name(peer),
                        describe(event.head)));
    case Kind::kReset:
      resets_[peer] = event.reset;
      for (std::size_t other = 0; other < links_.size(); ++other)
        if (has_part(operation, other)) links_[other].detach(operation, other);
      return throw_if_reset();
    case Kind::kAbort:
      abort(&operation, event.text);
    case Kind::kLeft:
      abort(&operation, fmt::format("{} has left: its program has destroyed its collective; {}",
                                    doing, last_of(peer)));
    case Kind::kEnded:
      abort(&operation, fmt::format("{} has ended ({}); {}", doing, event.text, last_of(peer)));
    case Kind::kNonsense:
      abort(&operation,
            doing + " sent bytes that make no sense here: all ranks must run the same build");
  }
}

// Those to blame if nothing moves. They have not come, owe bytes that only they can send, or do not
// take ours. All others wait for them, as we do.
std::vector<std::size_t> TcpPeers::late_ones(const TcpOperation& operation) const {
  std::vector<std::size_t> late;
  std::vector<std::size_t> incomplete;
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (complete(operation, peer)) continue;
    incomplete.push_back(peer);
    const TcpLink& link = links_[peer];
    if (!link.met() || operation.owes(peer) || !link.flushed()) late.push_back(peer);
  }
  return late.empty() ? incomplete : late;
}

std::string TcpPeers::last_of(std::size_t peer) const {
  const OperationHead& last = links_[peer].last();
  return last.number == 0 ? "it has begun no operation" : "it began last " + describe(last);
}

void TcpPeers::give_up_late(const Doing& doing) {
  const TcpOperation& operation = *doing.operation;
  const auto late = late_ones(operation);
  std::vector<std::string> names;
  names.reserve(late.size());
  for (const std::size_t peer : late) names.push_back(name(peer));
  const std::string why = links_[late.front()].met()
                              ? fmt::format("moved no bytes for {} s", in_seconds(doing.limit))
                              : fmt::format("did not come within {} s", in_seconds(doing.limit));
  const bool names_all = doing.names_all && late.size() > 1;
  abort(&operation,
        fmt::format("rank {}: {}: {} {}; {}{}", options_.place.rank, describe(operation.head()),
                    names_all ? fmt::format("{}", fmt::join(names, ", ")) : names.front(), why,
                    names_all ? fmt::format("of rank {}: ", late.front()) : "",
                    last_of(late.front())));
}

void TcpPeers::abort(const TcpOperation* current, const std::string& why) {
  failure_ = why;
  const std::span<const char> text(why.data(), std::min(why.size(), kReasonBytesMax));
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (peer == options_.place.rank) continue;
    TcpEvent unheard;
    if (current != nullptr && has_part(*current, peer)) links_[peer].detach(*current, peer);
    links_[peer].say(FrameKind::kAbort, std::as_bytes(text));
    links_[peer].flush(unheard);
    links_[peer].end_sending();
  }
  throw CollectiveError(why);
}

// Leaves the operation under way, and says to all that this rank resets.
void TcpPeers::begin_reset(const TcpOperation* current, const ResetNote& mine) {
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (peer == options_.place.rank) continue;
    if (current != nullptr && has_part(*current, peer)) links_[peer].detach(*current, peer);
    links_[peer].say(FrameKind::kReset, bytes_of(mine));
  }
}

// One turn with all. Whether this rank has said all that it has to, and has heard all others.
bool TcpPeers::reset_step(const ResetNote& mine, std::vector<std::optional<ResetNote>>& theirs) {
  bool all = true;
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (peer == options_.place.rank) {
      theirs[peer] = mine;
      continue;
    }
    TcpEvent event;
    links_[peer].flush(event);
    // The reason why a peer has gone may lie in front of the end.
    TcpEvent heard;
    if (!theirs[peer]) links_[peer].discard(heard);
    if (heard.kind != Kind::kNone) event = heard;
    if (event.kind == Kind::kReset) {
      theirs[peer] = event.reset;
    } else if (event.kind != Kind::kNone) {
      abort(nullptr, event.kind == Kind::kAbort ? event.text
                                                : fmt::format("rank {}: reset: {} has ended",
                                                              options_.place.rank, name(peer)));
    }
    all = all && theirs[peer].has_value() && links_[peer].flushed();
  }
  return all;
}

// Waits until a link can be moved on.
void TcpPeers::sleep_in_reset(const std::vector<std::optional<ResetNote>>& theirs,
                              std::chrono::milliseconds limit) {
  std::vector<pollfd> watched;
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    const int events = (theirs[peer] ? 0 : POLLIN) | (links_[peer].flushed() ? 0 : POLLOUT);
    if (events != 0) watched.push_back({links_[peer].descriptor(), static_cast<short>(events), 0});
  }
  poll_all(watched, limit);
}

// Names the first rank that has not called reset(), or has not taken the note of this one.
void TcpPeers::give_up_reset(const std::vector<std::optional<ResetNote>>& theirs) {
  std::size_t late = 0;
  while (late == options_.place.rank || (theirs[late] && links_[late].flushed())) ++late;
  abort(nullptr, fmt::format("rank {}: reset: {} did not come within {} s", options_.place.rank,
                             name(late), in_seconds(options_.timeout)));
}

std::vector<ResetNote> TcpPeers::reset(const TcpOperation* current, const ResetNote& mine) {
  throw_if_failed();
  begin_reset(current, mine);
  std::vector<std::optional<ResetNote>> theirs =
      std::exchange(resets_, std::vector<std::optional<ResetNote>>(links_.size()));
  const auto end = Clock::now() + options_.timeout;
  while (!reset_step(mine, theirs)) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) give_up_reset(theirs);
    sleep_in_reset(theirs, left);
  }
  start();
  std::vector<ResetNote> notes;
  notes.reserve(theirs.size());
  for (const auto& note : theirs) notes.push_back(*note);
  return notes;
}

}  // namespace ddprun::worker
