// The host's side of the proofs: who has called and has not yet proved that it knows its job's
// token. It decides who is let in. Pure: an event and `now` go in, what must be done comes out.
// Owned by who serves the calls, and sends, refuses and cuts; on its thread.
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

#include "base/result.h"
#include "rendezvous/trust/node_handshake.h"
#include "rendezvous/trust/proof.h"
#include "rendezvous/trust/tls_channels.h"

namespace ddprun::rendezvous {

// A call whose proof does not come within this time is cut. If many nodes come at once, and share a
// machine, an honest one may need some seconds.
inline constexpr std::chrono::seconds kProofLimit{20};

// The token that a host has for one of its jobs.
struct HostToken {
  std::string key;  // key_of_token(); empty: none
  // A caller that does not know it is let in all the same. The host proves nothing to it.
  bool is_optional = false;
};

class NodeAuthenticator {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using CallId = void*;
  // The token of the job with this rendezvous id. Nothing if that job is not served here.
  using TokenOf = std::function<std::optional<HostToken>(const std::string& job)>;
  // Whether one of these TLS channels is a connection of this host.
  using HasChannel = std::function<bool(const std::vector<std::string>& channels)>;

  struct Options {
    TokenOf token_of;
    std::size_t most = 0;  // how many calls may wait at a time
    Deed deed = Deed::kJoin;
    HasChannel has_channel{has_host_channel};
    std::chrono::milliseconds proof_limit = kProofLimit;
  };
  // A call that was let in.
  struct AdmittedCall {
    std::string job;
    HostProof answer;        // to be sent before all else
    bool is_proven = false;  // it knows the token
  };

  explicit NodeAuthenticator(Options options) : options_(std::move(options)) {}

  // A call came that asks for `job` and brings a nonce; `host_nonce` is a fresh one of ours.
  // Errors: kProtocol, it brings something that no node of ours brings; kNotFound, the job is not
  // here. A refused caller must end its call in time, too: it may never read why.
  Result<Challenge> called(CallId call, std::string job, std::string node_nonce,
                           std::string host_nonce, Time now);
  // The call's answer, which came in clear or by TLS, and an operator's question. Error: kRejected.
  Result<AdmittedCall> answered(CallId call, const Proof& proof, bool is_clear,
                                std::string question = {});
  void forget(CallId call);

  // Returns whether its answer is still to come.
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
    HostToken token;
    std::list<Entry>::iterator place;
    bool is_refused = false;
  };

  void add(CallId call, Waiting one, Time now);
  void erase(std::unordered_map<CallId, Waiting>::iterator one);

  const Options options_;
  std::unordered_map<CallId, Waiting> waiting_;
  std::list<Entry> order_;  // oldest first; all have the same limit
};

// A refusal of called() or answered() for our log. Leaves out the id that the caller sent: a
// unauthenticated peer must not write into our log.
std::string reason_to_log(const Error& refusal);

}  // namespace ddprun::rendezvous
