// The job's rendezvous in this process: a Membership with a clock, one timer and real nodes. A node
// of this process calls open_session(); service.h lets remote nodes in through
// open_direct_session(). Host has no socket and no gRPC, so a job of one node pays for neither. It
// decides nothing: Membership does.
//
// On the loop's thread only. Owned by the agent that hosts the job.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "proto/alarm.h"
#include "rendezvous/membership.h"
#include "rendezvous/rendezvous.h"

namespace ddprun::rendezvous {

class Host {
 public:
  // `loop` must outlive the host. The host must outlive every Session that it gave out. `record`: as
  // in Membership.
  Host(boost::asio::io_context& loop, const RoundPolicy& policy, JobRecord record = {});
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host();

  // Called when a round is agreed, before any node hears of it. All workers of the round before are
  // gone then. An agent whose store has a fixed port empties the store here: later, workers of the
  // new round may have written to it. It must not call the host.
  std::function<void(const Round&)> before_publish;

  // Where the host may be deposed. Called when a round is agreed, before all else. The round is
  // published when `recorded` is called, and until then no node is told anything: what happens
  // meanwhile is told after it. `recorded` may be called after the host's end. It must not be called
  // from inside this function.
  std::function<void(JobRecord, std::function<void()> recorded)> record_round;

  // Ends every session with `error`: another process leads now. The host decides nothing any more.
  void end(const Error& error);

  // Opens a node's session; the caller owns it. `handler` gets the messages and may destroy the
  // session. Destroying the session without leave() means that the node is lost, as a broken
  // connection does. The default of `observed` is for the node in the host's own process.
  std::unique_ptr<Session> open_session(Session::MessageHandler handler,
                                        Observed observed = {"127.0.0.1"});

  // The session of a node that is not in this process.
  class HostedSession : public Session {
   public:
    // Call it before this session is destroyed, if the node said nothing for so long. Without it,
    // the node's connection ended.
    virtual void went_silent(std::chrono::milliseconds silence) = 0;
  };

  // As open_session(), but messages are not posted: `handler` runs inside the function of a Session
  // that caused the message. So when leave() of one node returns, the messages to the other nodes
  // are on their way, even if this process ends right after. `handler` must not call the host and
  // must not destroy a session. For service.h.
  std::unique_ptr<HostedSession> open_direct_session(Session::MessageHandler handler,
                                                     Observed observed);

 private:
  class LocalSession;
  struct Reader {
    // Only this owns the handler. Messages that are posted but not yet delivered hold it weakly, so
    // a closed session gets none of them.
    std::shared_ptr<Session::MessageHandler> handler;
    bool at_once = false;  // call the handler directly; do not post
  };

  std::unique_ptr<HostedSession> open(Reader reader, Observed observed);
  void perform(Outcome outcome);
  void tell(const Outcome& outcome);
  void record(const Publication& published);
  void recorded();
  void publish(const Publication& published);
  void deliver(SessionId to, HostMessage message);
  void close(SessionId id, const std::string& how);

  boost::asio::io_context& loop_;
  Membership membership_;
  Alarm alarm_;
  SessionId last_id_ = 0;
  std::map<SessionId, Reader> readers_;
  std::deque<Outcome> untold_;  // the first one publishes a round that is being recorded
  bool is_over_ = false;
  std::shared_ptr<Host*> self_ =
      std::make_shared<Host*>(this);  // for calls that come after our end
};

}  // namespace ddprun::rendezvous
