// The host's side of the proofs: who has called and has not yet proved that it knows its job's
// token. It decides who is let in. Pure: an event and `now` go in, what must be done comes out.
// Owned by Service, which sends, refuses and cuts; on its thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "proto/result.h"
#include "rendezvous/trust/node_handshake.h"
#include "rendezvous/trust/proof.h"

namespace ddprun::rendezvous {

// A call whose proof does not come within this time is cut. Where many nodes come at once, and share
// a machine, an honest one may need some seconds.
inline constexpr std::chrono::seconds kProofLimit{20};

class Doorkeeper {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using CallId = void*;
  // The token of the job with this rendezvous id; nothing: that job is not served here.
  using TokenOf = std::function<std::optional<std::string>(const std::string& job)>;

  // `most`: how many calls may wait at a time.
  Doorkeeper(TokenOf token_of, std::size_t most) : token_of_(std::move(token_of)), most_(most) {}

  // A call came that asks for `job` and brings a nonce; `host_nonce` is a fresh one of ours. Errors:
  // kProtocol, it brings something that no node of ours brings; kNotFound, the job is not here. Who is
  // refused must end his call in time, too: he may never read why.
  Result<Challenge> called(CallId call, std::string job, std::string node_nonce,
                           std::string host_nonce, Time now);
  // The call's answer: the job that it is let in to, or kRejected.
  Result<std::string> answered(CallId call, std::string_view proof);
  void forget(CallId call);

  // Whether its answer is still to come.
  bool awaits(CallId call) const {
    const auto found = waiting_.find(call);
    return found != waiting_.end() && !found->second.is_refused;
  }
  // The calls that must be cut: those whose time is over, and the oldest of too many. They wait no
  // more.
  std::vector<CallId> overdue(Time now);
  // When overdue() must be called next.
  Time look_again_at() const { return order_.empty() ? Time::max() : order_.front().until; }

 private:
  struct Entry {
    CallId call;
    Time until;
  };
  struct Waiting {
    ProofTerms terms;
    std::string token;
    std::list<Entry>::iterator place;
    bool is_refused = false;
  };

  void add(CallId call, Waiting one, Time now);
  void erase(std::unordered_map<CallId, Waiting>::iterator one);

  const TokenOf token_of_;
  const std::size_t most_;
  std::unordered_map<CallId, Waiting> waiting_;
  std::list<Entry> order_;  // oldest first; all have the same limit
};

// A refusal of called() or answered() for our log. Leaves out the id that the caller sent: a stranger
// must not write into our log.
std::string reason_to_log(const Error& refusal);

}  // namespace ddprun::rendezvous
