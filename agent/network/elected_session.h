// A node's session in a job whose nodes elect their leader (etcd). To the agent it is one session
// from the first join to the end. Behind it is a session with whoever leads: in this process, or over
// the network. When the leader is lost, the agent is told that its round broke; the next leader gets
// the join that the last one did not answer. Loop's thread; owned by NodeServices, which hosts the
// rendezvous if this node is elected.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "proto/loop.h"
#include "rendezvous/election/election.h"
#include "rendezvous/rendezvous.h"

namespace ddprun::agent {

class ElectedSession final : public rendezvous::Session {
 public:
  using RecordRound = std::function<void(rendezvous::JobRecord, std::function<void()> recorded)>;
  // What NodeServices does for it.
  struct Ways {
    // As Election::Handlers::own_address.
    std::function<Result<rendezvous::Leader>()> own_address;
    // Hosts the rendezvous here; every round goes through `record` first (Host::record_round).
    std::function<std::unique_ptr<Session>(rendezvous::JobRecord, RecordRound record,
                                           MessageHandler)>
        lead;
    // Opens a session with the leader. It tries once; `let_in` is called when the leader let it in.
    std::function<std::unique_ptr<Session>(const rendezvous::Leader&, std::function<void()> let_in,
                                           MessageHandler)>
        follow;
    // Tells the nodes of the rendezvous here why it ends.
    std::function<void(const Error&)> tell_end;
    // Ends the rendezvous here and stops listening. No session of it is left.
    std::function<void()> stop_leading;
  };

  // `loop` must outlive the session. Looks for a leader at once.
  ElectedSession(asio::io_context& loop, rendezvous::ElectionOptions options, Ways ways,
                 MessageHandler handler);
  ElectedSession(const ElectedSession&) = delete;
  ElectedSession& operator=(const ElectedSession&) = delete;
  ~ElectedSession() override = default;

  void join(const rendezvous::NodeSpec& node) override;
  void report_failure(std::int64_t round, const rendezvous::Failure& failure) override;
  void report_success(std::int64_t round) override;
  void leave(const rendezvous::Failure& reason) override;
  void gone() override;
  std::optional<rendezvous::Gathering> gathering() const override;

 private:
  void lead(rendezvous::JobRecord record);
  void follow(const rendezvous::Leader& leader);
  void deposed(const std::string& why);
  void job_over(bool succeeded);
  void heard(const rendezvous::HostMessage& message);
  void lose(const rendezvous::SessionLost& lost);
  void take(std::unique_ptr<Session> session);
  void ask();
  void end(bool succeeded, const rendezvous::HostMessage& message);

  const Ways ways_;
  const MessageHandler handler_;
  std::string leader_;  // host name; empty: none was found yet
  bool leads_ = false;
  bool is_over_ = false;
  std::optional<rendezvous::NodeSpec> joining_;  // asked for and not answered yet
  std::int64_t round_ = 0;                       // the last that was published to us
  int seat_ = -1;                                // our node rank in it
  bool is_seated_ = false;                       // the leader of now gave it to us
  rendezvous::Election election_;
  std::unique_ptr<Session> session_;  // with the leader; null: it is looked for
  // With a leader whose lease ended here. It must not hear of the end before our workers are gone.
  std::unique_ptr<Session> fenced_;
};

}  // namespace ddprun::agent
