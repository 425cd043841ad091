#include "rendezvous/control/control_client.h"

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <iterator>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "proto/control.grpc.pb.h"
#include "rendezvous/channel.h"
#include "rendezvous/codec.h"
#include "rendezvous/control/codec.h"
#include "rendezvous/trust/node_handshake.h"
#include "rendezvous/trust/tls_probe.h"

namespace ddprun::rendezvous {
namespace {

namespace v1 = control::v1;

ControlAnswer failed(const grpc::Status& status, bool awaits_end) {
  const grpc::StatusCode code = status.error_code();
  if (code == grpc::StatusCode::UNAUTHENTICATED)
    return {ControlOutcome::kWrongToken, status.error_message()};
  if (code == grpc::StatusCode::DEADLINE_EXCEEDED && awaits_end) return {ControlOutcome::kGoesOn};
  if (code == grpc::StatusCode::DEADLINE_EXCEEDED)
    return {ControlOutcome::kUnreachable, "no answer in time"};
  if (code == grpc::StatusCode::UNIMPLEMENTED)
    return {ControlOutcome::kUnreachable, "the peer answers no questions; is it an older ddprun?"};
  return {ControlOutcome::kUnreachable, status.error_message()};
}

// What is wrong with TLS; empty: nothing that we can see.
std::string tls_problem(const ControlTarget& target) {
  std::string problem;
  if (!target.tls.is_set()) return problem;
  for (const std::string& address : target.addresses) {
    boost::asio::io_context loop;
    probe_tls(loop.get_executor(), {address, target.port, target.host, target.tls},
              [&](const std::string& found) { problem = found; });
    loop.run();
    if (!problem.empty()) break;
  }
  return problem;
}

ControlAnswer ask_once(const ControlTarget& target, const ControlQuestion& question) {
  std::shared_ptr<grpc::Channel> channel;
  for (const std::string& address : target.addresses) {
    channel = make_channel(address, target.port, {target.tls, target.host}, kMaxAnswerBytes);
    if (!channel) return {ControlOutcome::kUnreachable, "the files of TLS are no good"};
    // Also the end of HTTP/2's greeting: somebody who takes every connection and says nothing is none.
    if (channel->WaitForConnected(std::chrono::system_clock::now() + target.connect_limit)) break;
    channel.reset();
  }
  if (!channel) {
    const std::string problem = tls_problem(target);
    return {ControlOutcome::kUnreachable, problem.empty() ? "nobody answers there" : problem};
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + target.answer_limit);
  NodeHandshake handshake(target.token, question.job);
  context.AddMetadata(kJobMetadata, question.job);
  context.AddMetadata(kNonceMetadata, handshake.begin());
  const auto stub = v1::Control::NewStub(channel);
  const auto call = stub->Ask(&context);
  v1::Answer message;
  if (call->Read(&message)) {
    v1::Question asked = encode(question);
    // It is asked nothing where it has not proved that it knows the token.
    Proof proof = handshake.challenged({message.challenge().nonce(), message.challenge().proof()});
    if (proof.bytes.empty()) asked.Clear();
    asked.set_proof(std::move(proof.bytes));
    call->Write(asked);
  }
  call->WritesDone();
  const bool answered = call->Read(&message);
  const grpc::Status status = call->Finish();
  if (handshake.host() == NodeHandshake::Host::kRefuted)
    return {ControlOutcome::kWrongToken, NodeHandshake::kDistrust};
  if (!answered || !status.ok())
    return failed(status, std::holds_alternative<AwaitEnd>(question.verb));
  auto answer = decode(message);
  if (!answer) return {ControlOutcome::kUnreachable, answer.error().message()};
  return *std::move(answer);
}

}  // namespace

ControlAnswer ask(const ControlTarget& target, const ControlQuestion& question) {
  ControlQuestion next = question;
  std::vector<JobStatus> before;
  for (;;) {
    ControlAnswer answer = ask_once(target, next);
    if (answer.outcome != ControlOutcome::kDone) return answer;
    std::ranges::move(answer.jobs, std::back_inserter(before));
    // A peer that goes on without a further job would keep us for ever.
    if (!answer.goes_on || answer.jobs.empty()) {
      answer.jobs = std::move(before);
      return answer;
    }
    next.verb = ShowJobs{before.back().job};
  }
}

}  // namespace ddprun::rendezvous
