#include "rendezvous/control/control_service.h"

#include <fmt/format.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <variant>

#include "base/alarm.h"
#include "proto/control.grpc.pb.h"
#include "rendezvous/control/codec.h"
#include "rendezvous/grpc/channel.h"
#include "rendezvous/grpc/codec.h"
#include "rendezvous/grpc/connections.h"
#include "rendezvous/grpc/loop_gate.h"
#include "rendezvous/grpc/proof_codec.h"

namespace ddprun::rendezvous {
namespace {

namespace v2 = control::v2;

ControlAnswer refusal(const Error& error) {
  const bool unknown = error.code() == ErrorCode::kNotFound;
  return {unknown ? ControlOutcome::kUnknown : ControlOutcome::kRefused, error.message()};
}

ControlAnswer answer_of(const Result<std::string>& done) {
  return done ? ControlAnswer{ControlOutcome::kDone, *done} : refusal(done.error());
}

grpc::Status unauthenticated(const std::string& why) {
  return {grpc::StatusCode::UNAUTHENTICATED, why};
}

// The most questions whose proof has not come; one more cuts the oldest.
constexpr std::size_t kMaxUnproven = 1024;

// Without a token nobody on the network can be told from another.
constexpr const char* kNoToken =
    "the job has no token, so it listens to nobody over the network: run ddpctl on the "
    "rendezvous's own host, as the job's user or root, or start the job with DDPRUN_TOKEN";

NodeAuthenticator::Options authenticator_options(const ControlService::Options& options) {
  NodeAuthenticator::TokenOf token_of = options.token;
  if (options.is_local) token_of = [](const std::string&) { return HostToken{}; };
  return {.token_of = std::move(token_of), .most = kMaxUnproven, .deed = Deed::kOperate};
}

}  // namespace

// The loop's side, and gRPC's service, which makes a call for each question.
class ControlService::Calls final : public v2::Control::CallbackService {
 public:
  Calls(boost::asio::io_context& loop, Options options)
      : options_(std::move(options)),
        gate_(std::make_shared<LoopGate<Calls>>(loop, *this)),
        authenticator_(authenticator_options(options_)),
        proof_alarm_(loop, [this] { cut_overdue(); }) {}

  grpc::ServerBidiReactor<v2::ProvenQuestion, v2::Answer>* Ask(
      grpc::CallbackServerContext* context) override;
  void let_go();
  void end();

 private:
  class Call;
  using SharedCall = std::shared_ptr<Call>;

  void called(const SharedCall& call, std::string job, std::string nonce);
  void cut_overdue();
  void asked(const SharedCall& call, const Result<Proof>& proof, const std::string& question);
  void answer(const SharedCall& call, const ControlQuestion& question);
  void answer_for_inherited(const SharedCall& call, const ControlQuestion& question,
                            const Error& not_here);
  using AnswerOf = std::function<ControlAnswer(const JobControl::End&)>;
  void stop(const SharedCall& call, JobControl& job, const std::string& by);
  void await_end(const SharedCall& call, JobControl& job, AnswerOf answer_to);
  ControlAnswer page_after(const std::string& rdzv_id) const;
  Result<JobControl*> find(const std::string& rdzv_id) const;

  const Options options_;
  const std::shared_ptr<LoopGate<Calls>> gate_;
  NodeAuthenticator authenticator_;
  Alarm proof_alarm_;
  std::map<void*, SharedCall> unproven_;
  std::vector<SharedCall> waiting_;  // for the end of a job
};

// One question. gRPC has it until OnDone(), the loop while it has not answered.
class ControlService::Calls::Call final
    : public grpc::ServerBidiReactor<v2::ProvenQuestion, v2::Answer>,
      public std::enable_shared_from_this<Call> {
 public:
  Call(grpc::CallbackServerContext& context, std::shared_ptr<LoopGate<Calls>> gate)
      : context_(context), peer_(context.peer()), gate_(std::move(gate)) {}

  void start(std::string job, std::string nonce) {
    self_ = shared_from_this();
    gate_->post([self = self_, job = std::move(job), nonce = std::move(nonce)](Calls& calls) {
      calls.called(self, job, nonce);
    });
  }
  // The question is read when this is written: two writes at a time must not be.
  void challenge(const Challenge& challenge) {
    const std::lock_guard lock(mutex_);
    if (is_over_) return;
    answer_ = encode_challenge(challenge);
    StartWrite(&answer_);
  }
  // Any thread. Only the first of them counts.
  void answer(const ControlAnswer& answer) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_over_, true)) return;
    answer_ = encode(answer);
    answer_.set_proof(proof_);
    StartWriteAndFinish(&answer_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void break_off(const grpc::Status& status) {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(is_over_, true)) Finish(status);
  }
  // Breaks off for a peer that may read nothing: a status would wait for it for ever.
  void cut() {
    const std::lock_guard lock(mutex_);
    if (!is_over_) context_.TryCancel();  // OnCancel() ends it
  }
  const std::string& peer() const { return peer_; }
  // Loop's thread: who asked is let in, and is shown this.
  void admit(const HostProof& admitted) { proof_ = admitted.bytes; }
  bool is_clear() const { return Connections::is_clear(peer_); }
  bool is_over() const {
    const std::lock_guard lock(mutex_);
    return is_over_;
  }

 private:
  // ---- gRPC's threads ----
  void OnWriteDone(bool ok) override {
    if (ok) StartRead(&question_);
    if (!ok) break_off(grpc::Status::CANCELLED);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return break_off({grpc::StatusCode::INVALID_ARGUMENT, "no question"});
    gate_->post(
        [self = shared_from_this(), proof = decode_proof(question_),
         question = question_.question()](Calls& calls) { calls.asked(self, proof, question); });
  }
  // Also where the server ends before the loop has answered.
  void OnCancel() override { break_off(grpc::Status::CANCELLED); }
  void OnDone() override { self_.reset(); }

  grpc::CallbackServerContext& context_;  // gRPC's, until the call is over
  const std::string peer_;
  const std::shared_ptr<LoopGate<Calls>> gate_;
  std::string proof_;  // ours
  v2::ProvenQuestion question_;
  v2::Answer answer_;
  // Nothing is started after the end: gRPC may free its half of the call. Recursive: a cancel may
  // call OnCancel() before it returns.
  mutable std::recursive_mutex mutex_;
  bool is_over_ = false;
  SharedCall self_;
};

grpc::ServerBidiReactor<v2::ProvenQuestion, v2::Answer>* ControlService::Calls::Ask(
    grpc::CallbackServerContext* context) {
  const auto call = std::make_shared<Call>(*context, gate_);
  call->start(call_metadata(*context, kJobMetadata), call_metadata(*context, kNonceMetadata));
  return call.get();
}

void ControlService::Calls::called(const SharedCall& call, std::string job, std::string nonce) {
  const auto challenge = authenticator_.called(call.get(), std::move(job), std::move(nonce),
                                               make_nonce(), std::chrono::steady_clock::now());
  if (!challenge) {
    authenticator_.forget(call.get());
    return call->break_off(unauthenticated(challenge.error().message()));
  }
  unproven_.emplace(call.get(), call);
  call->challenge(*challenge);
  cut_overdue();
}

void ControlService::Calls::cut_overdue() {
  for (void* const overdue : authenticator_.overdue(std::chrono::steady_clock::now()))
    unproven_.extract(overdue).mapped()->cut();
  proof_alarm_.set(authenticator_.look_again_at());
}

void ControlService::Calls::asked(const SharedCall& call, const Result<Proof>& proof,
                                  const std::string& question) {
  if (unproven_.erase(call.get()) == 0) return;  // it was cut
  const auto in =
      authenticator_.answered(call.get(), proof ? *proof : Proof{}, call->is_clear(), question);
  authenticator_.forget(call.get());
  if (!in) return call->break_off(unauthenticated(in.error().message()));
  if (!in->is_proven && !options_.is_local)
    return call->break_off({grpc::StatusCode::PERMISSION_DENIED, kNoToken});
  if (options_.on_admitted) options_.on_admitted(call->peer());
  call->admit(in->answer);
  const auto asked = decode_question(question);
  if (!asked) return call->answer(refusal(asked.error()));
  // A caller that knows the token of one job must not ask about another one.
  if (asked->job != in->job)
    return call->break_off(unauthenticated("the proof is for another job"));
  answer(call, *asked);
}

void ControlService::Calls::answer(const SharedCall& call, const ControlQuestion& question) {
  const std::string elsewhere = options_.turns_away ? options_.turns_away() : "";
  if (!elsewhere.empty()) return call->break_off({grpc::StatusCode::UNAVAILABLE, elsewhere});
  if (std::holds_alternative<ShowStacks>(question.verb))
    return call->answer({ControlOutcome::kRefused,
                         "a rendezvous has no stacks: ask on the nodes, without an endpoint"});
  const auto* const shown = std::get_if<ShowJobs>(&question.verb);
  if (shown != nullptr && question.job.empty()) return call->answer(page_after(shown->after));
  const auto found = find(question.job);
  if (!found) return answer_for_inherited(call, question, found.error());
  JobControl& job = **found;
  if (shown != nullptr) return call->answer({.jobs = {job.status()}});
  if (const auto* drain = std::get_if<DrainNode>(&question.verb))
    return call->answer(answer_of(job.drain(drain->node, drain->deadline)));
  if (const auto* forgive = std::get_if<ForgiveNode>(&question.verb))
    return call->answer(answer_of(job.forgive(forgive->node)));
  if (const auto* resize = std::get_if<ResizeJob>(&question.verb))
    return call->answer(answer_of(job.resize(resize->min_nodes, resize->max_nodes)));
  if (const auto* stop = std::get_if<StopJob>(&question.verb))
    return this->stop(call, job, stop->by);
  if (std::holds_alternative<SaveCheckpoint>(question.verb))
    return call->answer(answer_of(job.save_checkpoint()));
  await_end(call, job, [](const JobControl::End& end) -> ControlAnswer {
    return {end.succeeded ? ControlOutcome::kDone : ControlOutcome::kJobFailed, end.text};
  });
}

// Answers the caller when the nodes are told. If it answered before, the next leader would go on
// with the job.
void ControlService::Calls::stop(const SharedCall& call, JobControl& job, const std::string& by) {
  const auto stopped = job.stop(by);
  if (!stopped) return call->answer(refusal(stopped.error()));
  await_end(call, job, [stopped](const JobControl::End&) { return answer_of(stopped); });
}

void ControlService::Calls::answer_for_inherited(const SharedCall& call,
                                                 const ControlQuestion& question,
                                                 const Error& not_here) {
  const auto state = options_.inherited ? options_.inherited(question.job) : std::nullopt;
  if (!state) return call->answer(refusal(not_here));
  if (*state == InheritedJob::kRuns)
    return call->break_off({grpc::StatusCode::UNAVAILABLE,
                            fmt::format("the nodes of job {} are coming back to this leader: ask "
                                        "again",
                                        question.job)});
  const bool succeeded = *state == InheritedJob::kSucceeded;
  const bool awaits_end = std::holds_alternative<AwaitEnd>(question.verb);
  const ControlOutcome outcome = !awaits_end ? ControlOutcome::kRefused
                                 : succeeded ? ControlOutcome::kDone
                                             : ControlOutcome::kJobFailed;
  call->answer({outcome, fmt::format("job {} {} under the leader before this one", question.job,
                                     succeeded ? "succeeded" : "failed")});
}

// Sorts by id. So a job that comes or goes meanwhile moves no other one to another page.
ControlAnswer ControlService::Calls::page_after(const std::string& rdzv_id) const {
  std::vector<JobControl*> jobs = options_.jobs();
  std::ranges::sort(jobs, {}, &JobControl::rdzv_id);
  ControlAnswer page;
  std::size_t bytes = 0;
  auto one = rdzv_id.empty() ? jobs.begin()
                             : std::ranges::upper_bound(jobs, rdzv_id, {}, &JobControl::rdzv_id);
  for (; one != jobs.end(); ++one) {
    page.has_more = bytes >= options_.page_bytes;
    if (page.has_more) break;
    page.jobs.push_back((*one)->status());
    bytes += encoded_bytes(page.jobs.back());
  }
  return page;
}

// The waiter holds no `this`: the job may outlive us.
void ControlService::Calls::await_end(const SharedCall& call, JobControl& job, AnswerOf answer_to) {
  std::erase_if(waiting_, [](const SharedCall& other) { return other->is_over(); });
  waiting_.push_back(call);
  const std::weak_ptr waiting(call);
  job.wait(
      [waiting, answer_to = std::move(answer_to)](const JobControl::End& end) {
        if (const auto alive = waiting.lock()) alive->answer(answer_to(end));
      },
      [waiting] {
        const auto alive = waiting.lock();
        return !alive || alive->is_over();
      });
}

Result<JobControl*> ControlService::Calls::find(const std::string& rdzv_id) const {
  const std::vector<JobControl*> jobs = options_.jobs();
  if (rdzv_id.empty() && jobs.size() == 1) return jobs.front();
  if (rdzv_id.empty())
    return Error(ErrorCode::kNotFound, fmt::format("{} jobs are here: name one", jobs.size()));
  const auto found = std::ranges::find(jobs, rdzv_id, &JobControl::rdzv_id);
  if (found == jobs.end())
    return Error(ErrorCode::kNotFound, fmt::format("no job with rdzv_id={} is here", rdzv_id));
  return *found;
}

void ControlService::Calls::let_go() {
  const grpc::Status moves{grpc::StatusCode::UNAVAILABLE, "another leads the jobs now: ask again"};
  for (const SharedCall& call : std::exchange(waiting_, {})) call->break_off(moves);
}

void ControlService::Calls::end() {
  gate_->close();
  proof_alarm_.set(Alarm::Time::max());
  const grpc::Status ends{grpc::StatusCode::UNAVAILABLE, "the rendezvous ends"};
  for (const auto& [key, call] : std::exchange(unproven_, {})) call->break_off(ends);
  for (const SharedCall& call : std::exchange(waiting_, {})) call->break_off(ends);
}

ControlService::ControlService(boost::asio::io_context& loop, Options options)
    : calls_(std::make_unique<Calls>(loop, std::move(options))) {}

ControlService::~ControlService() { end(); }

void ControlService::add_to(grpc::ServerBuilder& builder) { builder.RegisterService(calls_.get()); }

void ControlService::let_go() { calls_->let_go(); }

void ControlService::end() { calls_->end(); }

}  // namespace ddprun::rendezvous
