#include "rendezvous/trust/node_authenticator.h"

#include <utility>

#include "base/assert.h"
#include "proto/token_file.h"

namespace ddprun::rendezvous {

Result<Challenge> NodeAuthenticator::called(CallId call, std::string job, std::string node_nonce,
                                            std::string host_nonce, Time now) {
  const bool is_ours = node_nonce.size() == kNonceBytes && job.size() <= kMaxJobBytes;
  std::optional<HostToken> token = is_ours ? options_.token_of(job) : std::nullopt;
  if (!token) {
    add(call, {.terms = {}, .token = {}, .is_refused = true}, now);
    if (!is_ours)
      return Error(ErrorCode::kProtocol, "the call is none of a ddprun of this version");
    return Error(ErrorCode::kNotFound,
                 "it serves another job than the one with rdzv_id=" + std::move(job));
  }
  Waiting one{
      .terms = {options_.deed, std::move(job), std::move(node_nonce), std::move(host_nonce)},
      .token = *std::move(token)};
  Challenge challenge{one.terms.host_nonce};
  add(call, std::move(one), now);
  return challenge;
}

// A proof for another channel, one that ends at somebody in between, is none.
Result<NodeAuthenticator::AdmittedCall> NodeAuthenticator::answered(CallId call, const Proof& proof,
                                                                    bool is_clear,
                                                                    std::string question) {
  DDPRUN_ASSERT(awaits(call));
  const auto found = waiting_.find(call);
  Waiting& one = found->second;
  one.terms.channels = proof.channels;
  one.terms.question = std::move(question);
  const bool is_here = is_clear ? proof.channels.empty() : options_.has_channel(proof.channels);
  const bool is_proven =
      is_here && is_proof(proof.bytes, Prover::kCaller, one.token.key, one.terms);
  if (!is_proven && !one.token.key.empty() && !one.token.is_optional) {
    one.is_refused = true;
    return Error(ErrorCode::kRejected, "the job's token is missing or wrong");
  }
  AdmittedCall in{.job = one.terms.job, .answer = {}, .is_proven = is_proven};
  if (is_proven) in.answer.bytes = prove(Prover::kHost, one.token.key, one.terms);
  erase(found);
  return in;
}

void NodeAuthenticator::forget(CallId call) {
  if (const auto found = waiting_.find(call); found != waiting_.end()) erase(found);
}

std::vector<NodeAuthenticator::CallId> NodeAuthenticator::overdue(Time now) {
  std::vector<CallId> calls;
  while (!order_.empty() && (order_.front().until <= now || order_.size() > options_.most)) {
    calls.push_back(order_.front().call);
    forget(calls.back());
  }
  return calls;
}

void NodeAuthenticator::add(CallId call, Waiting one, Time now) {
  DDPRUN_ASSERT(!waiting_.contains(call));
  one.place = order_.insert(order_.end(), {call, now + options_.proof_limit});
  waiting_.emplace(call, std::move(one));
}

void NodeAuthenticator::erase(std::unordered_map<CallId, Waiting>::iterator one) {
  order_.erase(one->second.place);
  waiting_.erase(one);
}

std::string reason_to_log(const Error& refusal) {
  return refusal.code() == ErrorCode::kNotFound ? "it asks for another job (rdzv_id)"
                                                : refusal.message();
}

}  // namespace ddprun::rendezvous
