#include "rendezvous/control/control_client.h"

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel_posix.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <iterator>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "proto/control.grpc.pb.h"
#include "rendezvous/control/codec.h"
#include "rendezvous/grpc/channel.h"
#include "rendezvous/grpc/codec.h"
#include "rendezvous/trust/node_handshake.h"
#include "rendezvous/trust/tls_channels.h"
#include "rendezvous/trust/tls_probe.h"

namespace ddprun::rendezvous {
namespace {

namespace v2 = control::v2;

ControlAnswer failed(const grpc::Status& status, bool awaits_end) {
  const grpc::StatusCode code = status.error_code();
  if (code == grpc::StatusCode::PERMISSION_DENIED)
    return {ControlOutcome::kHasNoToken, status.error_message()};
  if (code == grpc::StatusCode::UNAUTHENTICATED)
    return {ControlOutcome::kWrongToken, status.error_message()};
  // Only a host with TLS says so, to a peer in clear (clear_refusal.h).
  if (code == grpc::StatusCode::FAILED_PRECONDITION)
    return {ControlOutcome::kTls, status.error_message()};
  if (code == grpc::StatusCode::DEADLINE_EXCEEDED && awaits_end)
    return {ControlOutcome::kStillRunning};
  if (code == grpc::StatusCode::DEADLINE_EXCEEDED)
    return {ControlOutcome::kUnreachable, "no answer in time"};
  if (code == grpc::StatusCode::UNIMPLEMENTED)
    return {ControlOutcome::kUnreachable,
            "it speaks another version of the protocol: ddpctl and the rendezvous must be of one "
            "release"};
  return {ControlOutcome::kUnreachable, status.error_message()};
}

// One call, and what came of it.
struct Converse {
  NodeHandshake handshake;
  bool in_clear = true;
  ChannelMark since = 0;
  v2::Answer answer{};
  grpc::Status status{};
};

// Returns the fault of TLS. Its text is empty if there is none that we can see.
TlsProblem tls_problem(const ControlTarget& target) {
  TlsProblem problem;
  if (!target.tls.is_set()) return problem;
  for (const std::string& address : target.addresses) {
    boost::asio::io_context loop;
    probe_tls(loop.get_executor(), {address, target.port, target.host, target.tls},
              [&](const TlsProblem& found) { problem = found; });
    loop.run();
    if (!problem.text.empty()) break;
  }
  return problem;
}

// Connected; null, and why.
std::pair<std::shared_ptr<grpc::Channel>, ControlAnswer> connect(const ControlTarget& target) {
  for (const std::string& address : target.addresses) {
    auto channel = make_channel(address, target.port, {target.tls, target.host}, kMaxAnswerBytes);
    if (!channel) return {nullptr, {ControlOutcome::kTls, "the files of TLS are no good"}};
    // Also the end of HTTP/2's greeting: somebody who takes every connection and says nothing is
    // none.
    if (channel->WaitForConnected(std::chrono::system_clock::now() + target.connect_limit))
      return {std::move(channel), ControlAnswer{}};
  }
  const auto [problem, takes_no_tls] = tls_problem(target);
  if (!problem.empty())
    return {nullptr, {takes_no_tls ? ControlOutcome::kNoTls : ControlOutcome::kTls, problem}};
  return {nullptr, {ControlOutcome::kUnreachable, "nobody answers there"}};
}

// The question, when the peer has asked for its proof; the answer is in `message` then. False if
// there is none; the status says why.
bool converse(v2::Control::Stub& stub, grpc::ClientContext& context, const std::string& question,
              Converse& with) {
  const auto call = stub.Ask(&context);
  bool answered = false;
  if (call->Read(&with.answer)) {
    auto proof = with.handshake.challenged({with.answer.challenge().nonce()},
                                           client_channels(with.since, !with.in_clear), question);
    if (!proof) context.TryCancel();
    if (proof) {
      v2::ProvenQuestion asked;
      asked.set_question(question);
      asked.set_proof(std::move(proof->bytes));
      for (std::string& channel : proof->channels) asked.add_channels(std::move(channel));
      call->Write(asked);
      call->WritesDone();
      answered = call->Read(&with.answer);
    }
  }
  with.status = call->Finish();
  return answered;
}

ControlAnswer ask_once(const ControlTarget& target, const std::shared_ptr<grpc::Channel>& local,
                       const ControlQuestion& question) {
  Converse with{.handshake = {target.token, question.job, Deed::kOperate},
                .in_clear = local != nullptr || !target.tls.is_set(),
                .since = mark_channels()};
  const auto [channel, problem] = local ? std::pair(local, ControlAnswer{}) : connect(target);
  if (!channel) return problem;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + target.answer_limit);
  context.AddMetadata(kJobMetadata, question.job);
  context.AddMetadata(kNonceMetadata, with.handshake.begin());
  const auto stub = v2::Control::NewStub(channel);
  if (!converse(*stub, context, encode(question), with) || !with.status.ok())
    return failed(with.status, std::holds_alternative<AwaitEnd>(question.verb));
  with.handshake.admitted({with.answer.proof()});
  if (!with.handshake.is_believed()) return {ControlOutcome::kWrongToken, NodeHandshake::kDistrust};
  auto answer = decode(with.answer);
  if (!answer) return {ControlOutcome::kUnreachable, answer.error().message()};
  return *std::move(answer);
}

}  // namespace

ControlAnswer ask(const ControlTarget& target, const ControlQuestion& question) {
  ControlQuestion next = question;
  std::vector<JobSnapshot> before;
  std::shared_ptr<grpc::Channel> local;
  if (target.local >= 0) {
    set_up_grpc();
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
    local = grpc::CreateCustomInsecureChannelFromFd("this-host", target.local, arguments);
  }
  for (;;) {
    ControlAnswer answer = ask_once(target, local, next);
    if (answer.outcome != ControlOutcome::kDone) return answer;
    std::ranges::move(answer.jobs, std::back_inserter(before));
    // A peer that goes on without a further job would keep us for ever.
    if (!answer.has_more || answer.jobs.empty()) {
      answer.jobs = std::move(before);
      return answer;
    }
    next.verb = ShowJobs{before.back().job};
  }
}

}  // namespace ddprun::rendezvous
