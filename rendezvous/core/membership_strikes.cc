// Membership where nodes sit out: who is passed over, and who plays all the same.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/duration.h"
#include "rendezvous/core/membership.h"

namespace ddprun::rendezvous {

// Each event ends here.
void Membership::settle(Outcome& outcome, Time now) {
  if (strikes_.forget_old(now)) mark_struck();
  pause_ends_at_ = ended() ? Time::max() : strikes_.next_return(now);
  go_on(outcome, now);
  if (!outcome.ended) return;
  pause_ends_at_ = Time::max();
  if (strikes_.empty()) return;
  outcome.ended->strikes = strikes_.text(now);
  if (end_) end_->strikes = outcome.ended->strikes;
  for (Delivery& delivery : outcome.deliveries)
    if (auto* const end = std::get_if<JobEnded>(&delivery.message))
      end->strikes = outcome.ended->strikes;
}

// Nodes of one host are told apart by their ids, which end with their agents. A host that has one
// node keeps its strikes when its agent comes back.
std::string Membership::strike_key(const Member& member) const {
  const NodeSpec& spec = member.entrant.spec;
  return is_alone_on_its_host(member) ? spec.hostname : spec.node_id;
}

bool Membership::is_alone_on_its_host(const Member& member) const {
  const std::string& hostname = member.entrant.spec.hostname;
  bool is_alone = true;
  members_.for_each([&](const Member& other) {
    if (&other != &member && other.listens() && other.entrant.spec.hostname == hostname)
      is_alone = false;
  });
  return is_alone;
}

// The strikes of a host are nobody's while several nodes share it. A leader that was lost is known
// by its host alone.
bool Membership::has_strikes_of_its_host(const Member& member) const {
  return strikes_.has(member.entrant.spec.hostname) && is_alone_on_its_host(member);
}

// Before this host's first round, nodes know more than it does: of a job before, or of a leader.
void Membership::take_strikes(const NodeSpec& spec, Time now) {
  if (!seats_.empty()) return;
  if (strikes_.rules().most == 0) strikes_.set_rules(spec.strike_rules);
  // A line that makes no sense is of a newer version: those before it count.
  if (spec.strikes.empty()) return;
  (void)strikes_.add(spec.strikes, now);
  mark_struck();
}

void Membership::mark_struck() {
  struck_.clear();
  if (strikes_.empty()) return;
  members_.for_each([this](const Member& member) { mark_if_struck(member); });
}

void Membership::mark_if_struck(const Member& member) {
  const NodeSpec& spec = member.entrant.spec;
  if (strikes_.has(spec.hostname) || strikes_.has(spec.node_id)) struck_.insert(member.session());
}

void Membership::strike(const Member& member, const Failure& cause, Time now, Outcome& outcome) {
  strike(strike_key(member), cause, now, outcome);
}

void Membership::strike(const std::string& node, const Failure& cause, Time now, Outcome& outcome) {
  const bool is_struck = strikes_.failed(node, round_number_, cause, now);
  mark_struck();
  const Time ends = strikes_.pause_ends(node);
  const int others = members_.listeners() - 1;
  if (!is_struck || ends <= now || others < policy_.min_nodes) return;
  outcome.notes.push_back(fmt::format("rendezvous: {} sits out for {} s (strikes: {:.2g}): {}",
                                      cause.hostname, in_seconds(ends - now),
                                      strikes_.count(node, now), describe(cause.fault)));
}

double Membership::strikes_of(const Member& member, Time now) const {
  const NodeSpec& spec = member.entrant.spec;
  const double own = strikes_.count(spec.node_id, now);
  return has_strikes_of_its_host(member) ? std::max(own, strikes_.count(spec.hostname, now)) : own;
}

Time Membership::sits_out_until(const Member& member) const {
  const NodeSpec& spec = member.entrant.spec;
  const Time own = strikes_.pause_ends(spec.node_id);
  return has_strikes_of_its_host(member) ? std::max(own, strikes_.pause_ends(spec.hostname)) : own;
}

bool Membership::forgive(const Member& member) {
  const NodeSpec& spec = member.entrant.spec;
  const bool by_host = forgive(spec.hostname);
  return forgive(spec.node_id) || by_host;
}

bool Membership::forgive(const std::string& hostname) {
  const bool is_known = strikes_.forgive(hostname);
  mark_struck();
  return is_known;
}

// A node without strikes goes first, and one that sits out does not go.
Member* Membership::next_spare(Time now) {
  Member* const first = members_.first_spare();
  if (first == nullptr || !struck_.contains(first->session())) return first;
  Member* chosen = nullptr;
  for (Member* const spare : members_.by_arrival(MemberState::kSpare)) {
    if (!struck_.contains(spare->session())) return spare;
    if (chosen == nullptr && !sits_out(*spare, now)) chosen = spare;
  }
  return chosen;
}

int Membership::spares_that_play(Time now) const {
  int spares = members_.count(MemberState::kSpare);
  for (const SessionId session : struck_) {
    const Member* const member = members_.find(session);
    if (member != nullptr && member->state == MemberState::kSpare && sits_out(*member, now))
      --spares;
  }
  return spares;
}

// Nodes that sit out give their seats back, before others get them.
void Membership::unseat_struck(Time now) {
  for (const SessionId session : struck_) {
    Member* const member = members_.find(session);
    if (member != nullptr && member->state == MemberState::kWaiting && sits_out(*member, now))
      members_.set_state(*member, MemberState::kSpare);
  }
}

// Too few others are here: those that came first play.
void Membership::seat_struck(Time now) {
  for (const SessionId session : struck_) {
    if (seats_held() >= policy_.min_nodes) return;
    Member* const member = members_.find(session);
    if (member != nullptr && member->state == MemberState::kSpare && sits_out(*member, now))
      members_.set_state(*member, MemberState::kWaiting);
  }
}

// The last ones get no seat in the round.
void Membership::put_last(std::vector<Member*>& arrivals, Time now) const {
  if (struck_.empty()) return;
  std::array<std::vector<Member*>, 3> groups;
  for (Member* const member : arrivals) {
    const bool is_struck = struck_.contains(member->session());
    groups[is_struck ? (sits_out(*member, now) ? 2 : 1) : 0].push_back(member);
  }
  arrivals.clear();
  for (const auto& group : groups) arrivals.insert(arrivals.end(), group.begin(), group.end());
}

// A node that was passed over has no claim to the seat that it had.
void Membership::note_players(Time now, Outcome& outcome) {
  for (const SessionId session : struck_) {
    Member* const member = members_.find(session);
    if (member == nullptr || !sits_out(*member, now)) continue;
    if (member->state == MemberState::kSpare) member->entrant.previous_seat = -1;
    if (member->state != MemberState::kWaiting) continue;
    outcome.notes.push_back(fmt::format(
        "rendezvous: {} should sit out (strikes: {:.2g}); it plays, since the job needs {} nodes",
        member->entrant.spec.hostname, strikes_of(*member, now), policy_.min_nodes));
  }
}

}  // namespace ddprun::rendezvous
