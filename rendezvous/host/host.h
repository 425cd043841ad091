// The job's rendezvous in this process: a Membership with a clock, one timer and real nodes. A node
// of this process calls open_session(); service.h lets remote nodes in through
// open_direct_session(). Host has no socket and no gRPC, so a job of one node pays for neither. It
// decides nothing: Membership does, Inquiry where workers stand still, and
// ReplicaComparison where they differ.
//
// On the loop's thread only. Owned by the agent that hosts the job.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/alarm.h"
#include "rendezvous/core/inquiry.h"
#include "rendezvous/core/membership.h"
#include "rendezvous/core/preemption.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/core/replicas.h"
#include "rendezvous/core/stragglers.h"

namespace ddprun::rendezvous {

class Host {
 public:
  // `loop` must outlive the host. The host must outlive every Session that it gave out. `record`:
  // as in Membership.
  Host(boost::asio::io_context& loop, const RoundPolicy& policy, JobRecord record = {});
  // As `finished`, which must be is_finished(), in memory of its own; the functions below are not
  // set.
  Host(boost::asio::io_context& loop, const Host& finished);
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host();

  // Called when a round is agreed, before any node hears of it. All workers of the round before are
  // gone then. An agent whose store has a fixed port empties the store here. Later, workers of the
  // new round may have written to it. It must not call the host.
  std::function<void(const Round&)> before_publish;

  // Set if the host may lose its leadership. Called when a round is agreed, before all else. The
  // round is published when `recorded` is called, and until then no node is told anything. Later
  // events are told after it. `recorded` may be called after the host's end. It must not be called
  // from inside this function.
  std::function<void(JobRecord, std::function<void()> recorded)> record_round;

  // As record_round, where the job has ended and there was a round: no node hears of it before.
  std::function<void(bool succeeded, std::function<void()> recorded)> record_end;

  // Set if the host may lose its leadership: tells whether this process leads beyond doubt. A
  // process that stood still may not know yet that another leads. Then nothing is decided any more,
  // and no node is told anything.
  std::function<bool()> leads;

  // Called with all that the membership decides, before any node hears of it. It must not call the
  // host.
  std::function<void(const Outcome&)> watch;

  // Called with each of these when the nodes have been told of it. If the host may lose its
  // leadership, the next leader would know it. It must not call the host.
  std::function<void(const Outcome&)> on_outcome;

  // Called with each verdict on a standstill, before any node hears of it. It must not call the
  // host.
  std::function<void(const Verdict&)> on_verdict;

  // Called when the last session has ended. It must not destroy the host.
  std::function<void()> left_alone;

  const Membership& membership() const { return membership_; }
  // Returns whether the node is in this process.
  bool is_here(SessionId id) const;
  std::size_t sessions() const { return readers_.size(); }
  // The job has ended, all nodes were told, and no node is known any more.
  bool is_finished() const {
    return membership_.ended() && readers_.empty() && unsent_.empty() &&
           membership_.members().size() == 0;
  }
  // Performs what an operator wants: `say(Membership&, Time)` answers an Outcome.
  template <typename Say>
  void obey(Say say) {
    perform(say(membership_, std::chrono::steady_clock::now()));
  }

  // An operator wants all ranks to save after one step, and to go on. Returns false if no round
  // runs, or a step is being sought.
  bool want_checkpoint();

  // Ends every session with `error`: another process leads now. The host decides nothing any more.
  void end(const Error& error);

  // Opens a node's session; the caller owns it. `handler` gets the messages and may destroy the
  // session. Destroying the session without leave() means that the node is lost, as a broken
  // connection does. The default of `observed` is for the node in the host's own process.
  std::unique_ptr<Session> open_session(Session::MessageHandler handler,
                                        PeerInfo observed = {"127.0.0.1"});

  // The session of a node that is not in this process.
  class HostedSession : public Session {
   public:
    // Call it before this session is destroyed, if the node said nothing for so long. Without it,
    // the node's connection ended.
    virtual void went_silent(std::chrono::milliseconds silence) = 0;
  };

  // As open_session(), but messages are not posted: `handler` runs inside the function of a Session
  // that caused the message. So when leave() of one node returns, the messages to the other nodes
  // are on their way. This process may end right after. `handler` must not call the host and must
  // not destroy a session. For service.h.
  std::unique_ptr<HostedSession> open_direct_session(Session::MessageHandler handler,
                                                     PeerInfo observed);

 private:
  class LocalSession;
  struct Reader {
    // Only this owns the handler. Messages that are posted but not yet delivered hold it weakly, so
    // a closed session gets none of them.
    std::shared_ptr<Session::MessageHandler> handler;
    bool at_once = false;  // call the handler directly; do not post
  };

  std::unique_ptr<HostedSession> open(Reader reader, PeerInfo observed);
  void perform(Outcome outcome);
  bool may_decide();
  bool may_inquire();
  void look_at_inquiry();
  void announce(const std::optional<Announcement>& announcement);
  void look_at_replicas();
  void look_at_preemption();
  void set_alarms();
  void tell(const Outcome& outcome);
  bool is_recorded(const Outcome& outcome) const;
  void record(const Outcome& outcome);
  JobRecord record_of(const Publication& published) const;
  void recorded();
  void publish(const Outcome& outcome);
  void deliver(SessionId to, HostMessage message);
  void close(SessionId id, const std::string& how, std::chrono::milliseconds silence);

  boost::asio::io_context& loop_;
  Membership membership_;
  Alarm alarm_;
  Inquiry inquiry_{judge};
  Alarm inquiry_alarm_;
  ReplicaComparison replicas_;
  Alarm replica_alarm_;
  Stragglers stragglers_;
  Preemption preemption_;
  Alarm preemption_alarm_;
  SessionId last_id_ = 0;
  std::map<SessionId, Reader> readers_;
  std::deque<Outcome> unsent_;  // the first one is being recorded
  bool is_over_ = false;
  std::shared_ptr<Host*> self_ =
      std::make_shared<Host*>(this);  // for calls that come after our end
};

}  // namespace ddprun::rendezvous
