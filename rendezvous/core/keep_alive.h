// How long silence may last: the deadlines of both sides of a session, of which one follows from
// the other. Pure. Any thread.
//
// A node's heartbeat carries the time of the node's own clock, and the host sends it back. The host
// heard the heartbeat after it was sent. So the node's lease counts from that moment; when it ends,
// the node kills its workers. The host waits as long, counted from when it heard the node. It waits
// kFenceMargin longer before it takes the node for lost. Packets may be lost, also in one direction
// only. Then a node that was cut off has no workers left when the others start a new round.
//
// A connection that breaks ends no lease: the node may come back until then
// (base/net/liveness_probe.h). The first lease over the new connection answers no heartbeat. The
// host may not have read yet that the node is back. So it prolongs nothing. The first answer to a
// heartbeat does.
//
// Time in which this side did not run is no silence. The host counts its own looks. A node that did
// not run near the end of its lease asks once more before it kills (HeldLease::is_over()).
//
// An agent that does not run (SIGSTOP) cannot kill: its guardian does that for it (lease_guard.h).
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace ddprun::rendezvous {

// The time in which a node whose lease ended kills its workers. Also for two clocks that do not run
// equally fast.
inline constexpr std::chrono::milliseconds kFenceMargin{400};
// A node that looks at its lease so late did not run meanwhile, and was perhaps not cut off.
inline constexpr std::chrono::milliseconds kSuspendedFor{200};
// Such a node asks the host, and its workers go on for so long at most without an answer. A node
// looks at its lease so long before the end, too. One that wakes up just then needs the time for an
// answer.
inline constexpr std::chrono::milliseconds kAskLimit{1000};
// Each heartbeat costs the host some 0.1 ms, and 0.2 where there are 10,000 nodes. With so much
// time for each node, it spends less than 4 % of a processor on 3,000 nodes. Beyond, the share
// grows, so that silence never lasts too long.
inline constexpr std::chrono::milliseconds kHeartbeatPerNode{3};
inline constexpr std::chrono::milliseconds kHeartbeatAtMost{10'000};
// If all nodes come at one time, a heartbeat waits until the host has dealt with the others.
inline constexpr std::chrono::milliseconds kDelayPerThousand{500};

// torchrun's names for both (keep_alive_interval, keep_alive_max_attempt in --rdzv-conf). A process
// that dies is noticed without them. So they are for what may come back. A node or host that stands
// still for 30 s keeps its seat, with some seconds to spare. Examples are a paused machine, a
// frozen container, SIGSTOP.
struct KeepAlive {
  std::chrono::milliseconds interval{12'000};
  int max_attempts = 3;

  bool operator==(const KeepAlive&) const = default;
};

struct Lease {
  std::chrono::milliseconds length{0};
  std::chrono::milliseconds heartbeat_every{0};  // a node renews its lease so often

  bool operator==(const Lease&) const = default;
};

// The lease that the host of `nodes` nodes gives. One lost packet may delay a heartbeat by some
// seconds (RFC 6298 section 5). So a lease is much longer than the time between two heartbeats.
// Heartbeats are as many as the host can hear without much work.
constexpr Lease lease_for(const KeepAlive& wanted, int nodes) {
  const auto quarter = wanted.interval / 4;
  const auto heartbeat = std::max(quarter, std::min(kHeartbeatPerNode * nodes, kHeartbeatAtMost));
  const auto delay = kDelayPerThousand * (nodes / 1000);
  return {.length = wanted.interval * wanted.max_attempts + quarter + heartbeat + delay,
          .heartbeat_every = heartbeat};
}

// The host looks so often who is silent.
constexpr std::chrono::milliseconds look_every(const KeepAlive& wanted) {
  return std::max(wanted.interval / 8, std::chrono::milliseconds(1));
}

// Returns how many looks without a word make a node lost. We count looks of our own timer and do
// not read the clock. Otherwise every node would be silent after our own loop was suspended (as on
// a suspended machine).
constexpr int patience(const KeepAlive& wanted, const Lease& lease) {
  const auto look = look_every(wanted);
  return static_cast<int>((lease.length + kFenceMargin + look - std::chrono::milliseconds(1)) /
                          look);
}

// The node's knowledge of its lease. All times are of its own clock.
class HeldLease {
 public:
  using Stamp = std::chrono::milliseconds;

  // The lease counts from when the heartbeat was sent that the host answered, and not from now. We
  // do not know how long the answer was under way. The first one answers no heartbeat. It counts
  // from now. The node asks for a seat only when it was let in. The host counts from what it heard
  // last.
  void renewed(Stamp from, const Lease& lease) {
    // Said before this process was suspended: it is not the answer that we wait for.
    if (asked_at_ && from < *asked_at_) return;
    asked_at_.reset();
    const bool is_first = !is_held();
    if (is_first) last_heartbeat_ = from - (carried_ ? lease.heartbeat_every : Stamp(0));
    if (from >= last_heartbeat_) awaits_answer_ = false;
    lease_ = lease;
    ends_ = is_first && carried_ ? *carried_ : from + lease.length;
    is_carried_ = is_first && carried_;
    if (is_first) look_at_ = std::max(from, last_quiet());
  }
  // Before the first lease, of a node that comes back with workers: the lease of before ends then.
  void carry(Stamp ends) { carried_ = ends_ = ends; }
  void heartbeat_sent(Stamp now) {
    last_heartbeat_ = now;
    awaits_answer_ = true;
  }

  // Call it at look_at(), and sooner if you like. If it is false, look again then, and send the
  // heartbeat that is due. A process that did not run until now cannot know whether it has its
  // seat. It asks once, and the answer is near. A connection that ends meanwhile is the answer,
  // too: the lease is over.
  bool is_over(Stamp now) {
    if (asked_at_ && now < look_at_) return false;
    if (std::exchange(asked_at_, std::nullopt)) return true;
    const bool did_not_run = now >= look_at_ + kSuspendedFor;
    const bool is_near_end = now >= last_quiet();
    if (!is_near_end || !did_not_run) {
      look_at_ = is_near_end ? ends_ : last_quiet();
      return now >= ends_;
    }
    asked_at_ = now;
    look_at_ = now + kAskLimit;
    last_heartbeat_ = now - lease_.heartbeat_every;
    awaits_answer_ = false;
    return false;
  }

  // The lease has ended, and no answer was there yet: what the host said may be old. It waits until
  // then.
  bool is_doubted(Stamp now) const { return is_held() && now >= ends_; }
  // This process did not run near the end of its lease. It does not know yet whether it has its
  // seat.
  bool was_suspended(Stamp now) const {
    return asked_at_ || (is_held() && now >= last_quiet() && now >= look_at_ + kSuspendedFor);
  }
  // Returns whether the lease is still that of before.
  bool is_carried() const { return is_carried_; }
  bool is_held() const { return lease_.length.count() > 0; }
  const Lease& lease() const { return lease_; }
  // Valid once held.
  Stamp ends() const { return ends_; }
  // As the last is_over() left it.
  Stamp look_at() const { return look_at_; }
  // When the next heartbeat is due; valid once held. Ask again after each of the calls above. A
  // heartbeat waits for the answer of the one before. A node that hears nothing would only prolong
  // the host's patience. But the host may leave an answer out, so it does not wait for ever.
  Stamp next_heartbeat() const {
    return last_heartbeat_ + (awaits_answer_ ? lease_.length / 4 : lease_.heartbeat_every);
  }

 private:
  // An answer to a heartbeat of later may come too late.
  Stamp last_quiet() const { return ends_ - kAskLimit; }

  Stamp ends_{0};
  Stamp look_at_{0};
  Lease lease_;
  Stamp last_heartbeat_{0};
  bool awaits_answer_ = false;
  std::optional<Stamp> asked_at_;  // the process did not run when it was to look
  std::optional<Stamp> carried_;
  bool is_carried_ = false;
};

// The host's knowledge of a node's silence. A lease may be shorter than one before, and the node
// may never hear of it. So no lease that was given is forgotten before its end.
class Silence {
 public:
  // The host gives `lease`, for what it heard last.
  void granted(const KeepAlive& wanted, const Lease& lease) {
    patience_ = patience(wanted, lease);
    length_ = lease.length;
    wait(patience_);
  }
  void broken() { wait(patience_); }
  // The node was heard over another connection before this one: its leases of then hold, too.
  void follows(const Silence& before) { wait(before.looks_left_); }
  // Call it every look_every(). True if the node is lost; its workers are gone.
  bool looked() { return --looks_left_ < 0; }
  // How long the silence has lasted at least when looked() is true.
  std::chrono::milliseconds length() const { return length_ + kFenceMargin; }

 private:
  void wait(int looks) { looks_left_ = std::max(looks_left_, looks); }

  std::chrono::milliseconds length_{0};  // of the last lease
  int patience_ = 0;                     // for it
  int looks_left_ = 0;
};

}  // namespace ddprun::rendezvous
