// The job's rendezvous in this process: Membership with a clock, one timer and real nodes.
// In-process nodes open_session() here; service.h lets remote ones in through the same call. No socket,
// no gRPC: a standalone job pays for neither. On the loop's thread only; made by the agent (or a
// daemon) that hosts the job.
#pragma once

#include <boost/asio/io_context.hpp>
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
  // `loop` outlives the host; the host outlives every Session it gave out.
  Host(boost::asio::io_context& loop, const RoundPolicy& policy);
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host();

  // Called synchronously when a round is agreed and before any node hears of it: all workers of the
  // round before are gone. The agent whose store has a fixed port empties it here. Must not call
  // back into the host.
  std::function<void(const Round&)> before_publish;

  // A node's session. Destroying it without leave() means that the node is gone (as a broken
  // connection does). `handler` may destroy the session. The default is the node in the host's own
  // process.
  std::unique_ptr<Session> open_session(Session::MessageHandler handler,
                                        Observed observed = {"127.0.0.1"});

  // As open_session(), but `handler` is called from inside the call that caused it, so that what one node
  // says is on its way to the others when the call returns, even if this process ends right after.
  // `handler` must neither call the host nor destroy a session. For service.h.
  std::unique_ptr<Session> open_direct_session(Session::MessageHandler handler, Observed observed);

 private:
  class LocalSession;
  struct Reader {
    // Shared with nobody but deliveries under way, which hold it weakly: a closed session hears
    // nothing more.
    std::shared_ptr<Session::MessageHandler> handler;
    bool at_once = false;
  };

  std::unique_ptr<Session> open(Reader reader, Observed observed);
  void perform(const Outcome& outcome);
  void publish(const Publication& published);
  void deliver(SessionId to, HostMessage message);
  void close(SessionId id);

  boost::asio::io_context& loop_;
  Membership membership_;
  Alarm alarm_;
  SessionId last_id_ = 0;
  std::map<SessionId, Reader> readers_;
};

}  // namespace ddprun::rendezvous
