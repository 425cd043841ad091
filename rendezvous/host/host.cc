#include "rendezvous/host/host.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "base/assert.h"
#include "base/duration.h"
#include "base/log.h"

namespace ddprun::rendezvous {
namespace {

Time now() { return std::chrono::steady_clock::now(); }

}  // namespace

// One node's session in this process. Its handler is in the host's map and not here. close() erases
// it, and messages that are posted but not yet delivered find no handler any more.
class Host::LocalSession final : public HostedSession {
 public:
  // `is_here`: its node is in this process, and not one that service.h let in.
  LocalSession(Host& host, SessionId id, PeerInfo observed, bool is_here)
      : host_(host), id_(id), observed_(std::move(observed)), is_here_(is_here) {}
  LocalSession(const LocalSession&) = delete;
  LocalSession& operator=(const LocalSession&) = delete;
  ~LocalSession() override { host_.close(id_, how_lost_, silence_); }

  void join(const NodeSpec& node) override {
    host_.perform(host_.membership_.joined(id_, node, observed_, now()));
  }
  void resume(const ResumeRequest& node) override {
    for (Outcome& unsent : host_.unsent_) unsent.withheld_from.push_back(id_);
    host_.perform(host_.membership_.resumed(id_, node, observed_, now()));
  }
  void report_failure(std::int64_t round, const Failure& failure) override {
    host_.perform(host_.membership_.failed(id_, round, failure, now()));
  }
  void report_success(std::int64_t round) override {
    host_.perform(host_.membership_.succeeded(id_, round, now()));
  }
  void leave(const Failure& reason) override {
    Membership& membership = host_.membership_;
    host_.perform(is_here_ ? membership.host_left(id_, reason, now())
                           : membership.left(id_, reason, now()));
  }
  // The end of the session says it. A host that leaves ends the job anyway, and service.h destroys
  // the session of a node that is gone.
  void gone() override {}
  void suspect(std::int64_t round) override {
    if (host_.may_inquire())
      host_.announce(host_.inquiry_.suspected(id_, round, host_.membership_, now()));
  }
  void give_evidence(std::int64_t round, std::int64_t inquiry,
                     const std::vector<RankEvidence>& evidence) override {
    if (host_.may_inquire()) host_.announce(host_.inquiry_.answered(id_, round, inquiry, evidence));
  }
  void report_replicas(const ReplicaReport& report) override {
    if (host_.may_inquire())
      host_.announce(host_.replicas_.reported(id_, report, host_.membership_, now()));
    if (const auto node = host_.replicas_.take_node_without())
      log::warning(
          fmt::format("--check-replicas: {} does not take part, so ranks are not compared "
                      "with its own",
                      *node));
  }
  void report_steps(const StepReport& report) override {
    if (host_.may_inquire())
      host_.announce(host_.stragglers_.reported(id_, report, host_.membership_, now()));
  }
  void give_notice(const Notice& notice) override {
    if (host_.may_inquire())
      host_.announce(host_.preemption_.noticed(id_, notice, host_.membership_, now(), is_here_));
  }
  void answer_step(const StepAnswer& answer) override {
    if (host_.may_inquire()) host_.announce(host_.preemption_.answered(id_, answer, now()));
  }
  std::optional<WaitStatus> wait_status() const override {
    return host_.membership_.wait_status(now());
  }
  void went_silent(std::chrono::milliseconds silence) override {
    silence_ = silence;
    how_lost_ = fmt::format("it was silent for {} s", in_seconds(silence));
  }

 private:
  Host& host_;
  const SessionId id_;
  const PeerInfo observed_;
  const bool is_here_;
  std::chrono::milliseconds silence_{0};
  std::string how_lost_ = "its connection to the rendezvous ended";
};

Host::Host(boost::asio::io_context& loop, const RoundPolicy& policy, JobRecord record)
    : loop_(loop),
      membership_(policy, std::move(record)),
      alarm_(loop, [this] { perform(membership_.tick(now())); }),
      inquiry_alarm_(loop, [this] { look_at_inquiry(); }),
      replica_alarm_(loop, [this] { look_at_replicas(); }),
      preemption_alarm_(loop, [this] { look_at_preemption(); }) {}

// Without members a membership has no pointer into itself.
Host::Host(boost::asio::io_context& loop, const Host& finished)
    : loop_(loop),
      membership_(finished.membership_),
      alarm_(loop, [this] { perform(membership_.tick(now())); }),
      inquiry_alarm_(loop, [this] { look_at_inquiry(); }),
      replica_alarm_(loop, [this] { look_at_replicas(); }),
      preemption_alarm_(loop, [this] { look_at_preemption(); }),
      last_id_(finished.last_id_),
      is_over_(finished.is_over_) {
  DDPRUN_ASSERT(finished.is_finished());
}

// A session that outlives the host would close itself in freed memory.
Host::~Host() { DDPRUN_ASSERT(readers_.empty()); }

std::unique_ptr<Session> Host::open_session(Session::MessageHandler handler, PeerInfo observed) {
  return open({std::make_shared<Session::MessageHandler>(std::move(handler)), false},
              std::move(observed));
}

std::unique_ptr<Host::HostedSession> Host::open_direct_session(Session::MessageHandler handler,
                                                               PeerInfo observed) {
  return open({std::make_shared<Session::MessageHandler>(std::move(handler)), true},
              std::move(observed));
}

std::unique_ptr<Host::HostedSession> Host::open(Reader reader, PeerInfo observed) {
  const SessionId id = ++last_id_;
  const bool is_here = !reader.at_once;
  readers_.emplace(id, std::move(reader));
  membership_.opened(id);
  return std::make_unique<LocalSession>(*this, id, std::move(observed), is_here);
}

void Host::perform(Outcome outcome) {
  if (!may_decide()) return;
  inquiry_.follow(membership_);
  replicas_.follow(membership_);
  stragglers_.follow(membership_);
  preemption_.follow(membership_);
  set_alarms();
  if (watch) watch(outcome);
  alarm_.set(membership_.look_again_at());
  const bool waits = !unsent_.empty();
  if (!waits && !is_recorded(outcome)) return tell(outcome);
  unsent_.push_back(std::move(outcome));
  if (!waits) record(unsent_.front());
}

bool Host::may_decide() {
  if (leads && !leads()) is_over_ = true;
  return !is_over_;
}

// No node knows of a round yet that is being recorded: none can suspect it.
bool Host::may_inquire() { return may_decide() && unsent_.empty(); }

void Host::look_at_inquiry() {
  if (may_inquire()) announce(inquiry_.tick(now()));
}

void Host::look_at_replicas() {
  if (may_inquire()) announce(replicas_.tick(now()));
}

void Host::look_at_preemption() {
  if (may_inquire()) announce(preemption_.tick(now()));
}

// Nobody waits for the end: the deadline is so long that no rank is told to hurry.
bool Host::want_checkpoint() {
  constexpr std::chrono::hours kNoHurry{24};
  if (!may_inquire()) return false;
  const auto order =
      preemption_.wanted({.deadline = kNoHurry, .is_end = false}, membership_, now());
  announce(order);
  return order.has_value();
}

void Host::set_alarms() {
  inquiry_alarm_.set(inquiry_.look_again_at());
  replica_alarm_.set(replicas_.look_again_at());
  preemption_alarm_.set(preemption_.look_again_at());
}

void Host::announce(const std::optional<Announcement>& announcement) {
  set_alarms();
  if (!announcement) return;
  const auto* const told = std::get_if<StandstillVerdict>(&announcement->message);
  if (told != nullptr && on_verdict) on_verdict(told->verdict);
  for (const SessionId to : announcement->to) deliver(to, announcement->message);
}

bool Host::is_recorded(const Outcome& outcome) const {
  return (outcome.published && record_round) ||
         (outcome.ended && record_end && membership_.round_number() > 0);
}

void Host::tell(const Outcome& outcome) {
  for (const std::string& note : outcome.notes) log::warning(note);
  if (outcome.published) publish(outcome);
  for (const Delivery& delivery : outcome.deliveries)
    if (outcome.hears(delivery.to, delivery.message)) deliver(delivery.to, delivery.message);
  if (on_outcome) on_outcome(outcome);
}

// Records a round that begins or a job that ends: `outcome` holds one of them.
void Host::record(const Outcome& outcome) {
  auto is_recorded_now = [self = std::weak_ptr(self_)] {
    if (const auto host = self.lock()) (*host)->recorded();
  };
  if (outcome.published)
    return record_round(record_of(*outcome.published), std::move(is_recorded_now));
  record_end(outcome.ended->succeeded, std::move(is_recorded_now));
}

// A node may be lost already whose round waits to be recorded.
JobRecord Host::record_of(const Publication& published) const {
  const auto own =
      std::ranges::count_if(published.sessions, [this](SessionId id) { return is_here(id); });
  const int others = published.round.node_count - static_cast<int>(own);
  return {.round = published.round.number,
          .restarts = published.round.restart_count,
          .rules = membership_.restart_rules(),
          .others = others,
          .leader_has_seat = own > 0};
}

// The first outcome may be told now, and what came after it, up to the next one that is recorded.
void Host::recorded() {
  if (is_over_ || unsent_.empty()) return;
  do {
    tell(unsent_.front());
    unsent_.pop_front();
  } while (!unsent_.empty() && !is_recorded(unsent_.front()));
  if (!unsent_.empty()) record(unsent_.front());
}

void Host::end(const Error& error) {
  is_over_ = true;
  unsent_.clear();
  alarm_.set(Time::max());
  inquiry_.end();
  replicas_.end();
  stragglers_.end();
  preemption_.end();
  set_alarms();
  std::vector<SessionId> all;
  for (const auto& [id, reader] : readers_) all.push_back(id);
  for (const SessionId id : all) deliver(id, SessionLost{.error = error});
}

void Host::publish(const Outcome& outcome) {
  const Publication& published = *outcome.published;
  if (before_publish) before_publish(published.round);
  for (std::size_t i = 0; i < published.sessions.size(); ++i) {
    const RoundPublished message{published.round, published.seats[i]};
    if (outcome.hears(published.sessions[i], message)) deliver(published.sessions[i], message);
  }
}

void Host::deliver(SessionId to, HostMessage message) {
  const auto found = readers_.find(to);
  if (found == readers_.end()) return;
  if (found->second.at_once) return (*found->second.handler)(std::move(message));
  boost::asio::post(loop_,
                    [to = std::weak_ptr(found->second.handler), message = std::move(message)] {
                      // Held for the call: the handler may destroy its own session.
                      if (const auto handler = to.lock()) (*handler)(message);
                    });
}

bool Host::is_here(SessionId id) const {
  const auto found = readers_.find(id);
  return found != readers_.end() && !found->second.at_once;
}

void Host::close(SessionId id, const std::string& how, std::chrono::milliseconds silence) {
  // The handler goes first: a node gets no message about its own loss.
  readers_.erase(id);
  Outcome outcome = membership_.session_lost(id, how, now());
  // The first sign of the loss was the first heartbeat that did not come.
  for (Delivery& delivery : outcome.deliveries) {
    auto* const broken = std::get_if<RoundBroken>(&delivery.message);
    if (broken != nullptr && !broken->is_resize) broken->cause.noticed_after = silence;
  }
  perform(std::move(outcome));
  if (readers_.empty() && left_alone) left_alone();
}

}  // namespace ddprun::rendezvous
