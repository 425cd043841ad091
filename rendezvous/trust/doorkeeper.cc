#include "rendezvous/trust/doorkeeper.h"

#include <utility>

#include "proto/assert.h"
#include "proto/token_file.h"

namespace ddprun::rendezvous {

Result<Challenge> Doorkeeper::called(CallId call, std::string job, std::string node_nonce,
                                     std::string host_nonce, Time now) {
  const bool is_ours = node_nonce.size() == kNonceBytes && job.size() <= kMaxJobBytes;
  std::optional<std::string> token = is_ours ? token_of_(job) : std::nullopt;
  if (!token) {
    add(call, {.terms = {}, .token = {}, .is_refused = true}, now);
    if (!is_ours)
      return Error(ErrorCode::kProtocol, "the call is none of a ddprun of this version");
    return Error(ErrorCode::kNotFound,
                 "it serves another job than the one with rdzv_id=" + std::move(job));
  }
  Waiting one{.terms = {std::move(job), std::move(node_nonce), std::move(host_nonce)},
              .token = *std::move(token)};
  Challenge challenge{one.terms.host_nonce, prove(Prover::kHost, one.token, one.terms)};
  add(call, std::move(one), now);
  return challenge;
}

Result<std::string> Doorkeeper::answered(CallId call, std::string_view proof) {
  DDPRUN_ASSERT(awaits(call));
  const auto found = waiting_.find(call);
  Waiting& one = found->second;
  if (!is_proof(proof, Prover::kNode, one.token, one.terms)) {
    one.is_refused = true;
    return Error(ErrorCode::kRejected, "the job's token is missing or wrong");
  }
  std::string job = std::move(one.terms.job);
  erase(found);
  return job;
}

void Doorkeeper::forget(CallId call) {
  if (const auto found = waiting_.find(call); found != waiting_.end()) erase(found);
}

std::vector<Doorkeeper::CallId> Doorkeeper::overdue(Time now) {
  std::vector<CallId> calls;
  while (!order_.empty() && (order_.front().until <= now || order_.size() > most_)) {
    calls.push_back(order_.front().call);
    forget(calls.back());
  }
  return calls;
}

void Doorkeeper::add(CallId call, Waiting one, Time now) {
  DDPRUN_ASSERT(!waiting_.contains(call));
  one.place = order_.insert(order_.end(), {call, now + kProofLimit});
  waiting_.emplace(call, std::move(one));
}

void Doorkeeper::erase(std::unordered_map<CallId, Waiting>::iterator one) {
  order_.erase(one->second.place);
  waiting_.erase(one);
}

std::string reason_to_log(const Error& refusal) {
  return refusal.code() == ErrorCode::kNotFound ? "it asks for another job (rdzv_id)"
                                                : refusal.message();
}

}  // namespace ddprun::rendezvous
