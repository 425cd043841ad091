#include "daemon/daemon.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cctype>
#include <utility>

#include "base/log.h"
#include "base/net/addresses.h"
#include "base/net/listener.h"
#include "base/random_number.h"
#include "daemon/memory.h"
#include "rendezvous/trust/refusals.h"

namespace ddprun::daemon {

using rendezvous::Host;
using rendezvous::JobControl;
using rendezvous::NodeSpec;
using rendezvous::SessionLost;

namespace {

// Jobs that end one after another share one trim: it looks at all memory.
constexpr std::chrono::seconds kTrimAfter{1};

Time now() { return std::chrono::steady_clock::now(); }

// A node that missed the end of its job hears it from the next leader, if it comes so soon.
constexpr std::chrono::seconds kKeepEnded{60};
// A job whose nodes do not come back to the next leader by then is forgotten.
constexpr std::chrono::seconds kKeepInherited{120};

}  // namespace

Daemon::Daemon(asio::io_context& loop, DaemonOptions options, const std::string& token)
    : loop_(loop),
      options_(std::move(options)),
      key_(rendezvous::key_of_token(token)),
      table_(options_.limits),
      alarm_(loop, [this] { look(); }),
      // Else what a large job used would stay with this process, in many small pieces.
      trim_alarm_(loop, [this] { give_memory_back(); }),
      inherited_alarm_(loop, [this] { forget_inherited(); }),
      refusals_(rendezvous::kRefusalWarningEvery) {}

// The order matters: the service would wait for operators who wait for a job's end. Its sessions
// must not outlive their hosts.
Daemon::~Daemon() {
  demultiplexer_.reset();
  local_operators_.reset();
  if (operators_) operators_->end();
  is_stopped_ = true;
  service_.reset();
}

Result<void> Daemon::open() {
  if (const auto sound = rendezvous::check_tls_files(options_.tls); !sound) return sound.error();
  auto acceptor = bind_listener(loop_, options_.address, options_.port, "--listen");
  if (!acceptor) return acceptor.error();
  port_ = acceptor->local_endpoint().port();
  const auto token = [key = key_](const std::string&) {
    return std::optional(rendezvous::HostToken{key});
  };
  const rendezvous::ControlService::Options for_operators{
      .token = token,
      .jobs = [this] { return jobs(); },
      .inherited = [this](const std::string& rdzv_id) { return inherited(rdzv_id); },
      .on_admitted = [this](const std::string& peer) { service_->admitted(peer); },
      .turns_away = [this] { return turned_away(); }};
  operators_ = std::make_unique<rendezvous::ControlService>(loop_, for_operators);
  local_operators_ = std::make_unique<rendezvous::LocalOperators>(
      loop_, acceptor->local_endpoint().address().to_string(), port_, for_operators);
  service_ = std::make_unique<rendezvous::Service>(
      loop_,
      rendezvous::ServiceOptions{
          .jobs =
              rendezvous::ManyJobs{
                  .token =
                      [token](const std::string& rdzv_id) {
                        return rdzv_id.empty() ? std::nullopt : token(rdzv_id);
                      },
                  .host = [this](const std::string& rdzv_id, const NodeSpec& spec,
                                 std::int64_t round) { return host_of(rdzv_id, spec, round); }},
          .answers_health = true,
          .max_calls = static_cast<std::size_t>(options_.limits.nodes),
          .too_many_calls = fmt::format(
              "rendezvous: as many nodes are here already as this ddprund allows (--max-nodes={})",
              options_.limits.nodes),
          .may_grant = [this] { return turned_away().empty(); },
          .turns_away = [this] { return turned_away(); },
          .resumes = options_.resumes || options_.has_group(),
          .tls = options_.tls,
          .more = [this](grpc::ServerBuilder& builder) { operators_->add_to(builder); }});
  service_->set_serving(!options_.has_group());
  std::function<void(int)> by_tls;
  if (options_.tls.is_set()) by_tls = [this](int fd) { service_->adopt_tls(fd); };
  demultiplexer_ = std::make_unique<rendezvous::PortDemultiplexer>(
      loop_, *std::move(acceptor),
      rendezvous::PortDemultiplexer::Handlers{.store = [](asio::ip::tcp::socket) {},  // closes it
                                              .rendezvous = [this](int fd) { service_->adopt(fd); },
                                              .rendezvous_by_tls = std::move(by_tls)});
  return {};
}

void Daemon::join_group(rendezvous::EtcdOptions etcd, const std::string& address,
                        std::function<void(const Error&)> failed) {
  group_ = std::make_unique<Group>(
      loop_,
      GroupOptions{.etcd = std::move(etcd),
                   .prefix = options_.etcd.prefix,
                   .name = options_.group,
                   .self = {address, port_, host_name()}},
      Group::Handlers{
          .lead = [this](rendezvous::JobRecordStore::Jobs jobs) { lead(std::move(jobs)); },
          .step_down = [this](const std::string& why) { step_down(why); },
          .failed = std::move(failed)});
}

void Daemon::stop(std::function<void()> done) {
  is_stopped_ = true;
  if (group_) {
    group_->resign([this, done = std::move(done)] {
      service_->let_go();
      done();
    });
    return;
  }
  if (options_.resumes) {
    service_->let_go();
  } else {
    const Error error(ErrorCode::kUnavailable, "rendezvous: ddprund was told to end");
    for (const auto& [number, job] : jobs_) job.host->end(error);
  }
  done();
}

// Empty if this process serves.
std::string Daemon::turned_away() const {
  if (!options_.has_group() || (group_ && group_->leads())) return {};
  return "this ddprund does not lead: " +
         (group_ ? group_->who_leads() : std::string("it looks for etcd"));
}

void Daemon::lead(rendezvous::JobRecordStore::Jobs jobs) {
  inherited_ = std::move(jobs);
  inherited_nodes_ = 0;
  int running = 0;
  int in_rounds = 0;
  for (const auto& [rdzv_id, job] : inherited_) {
    in_rounds += job.record.node_count();
    inherited_nodes_ = std::max(inherited_nodes_, job.served);
    if (job.state == rendezvous::RecordedJob::State::kRuns) {
      ++running;
      table_.inherit(rdzv_id);
    } else {
      group_->forget(rdzv_id, kKeepEnded);
    }
  }
  inherited_nodes_ = std::max(inherited_nodes_, in_rounds);
  inherited_alarm_.set(now() + kKeepInherited);
  log::info(fmt::format("this ddprund leads group {} from now on; jobs that go on: {}",
                        options_.group, running));
  service_->set_serving(true);
}

// The nodes look for the next leader, and their workers go on.
void Daemon::step_down(const std::string& why) {
  log::warning(fmt::format("this ddprund leads group {} no more: {}", options_.group, why));
  service_->set_serving(false);
  operators_->let_go();
  local_operators_->let_go();
  service_->let_go();
  jobs_.clear();
  table_.clear();
  inherited_.clear();
  for (Alarm* alarm : {&alarm_, &inherited_alarm_}) alarm->set(Time::max());
  trim_alarm_.set_no_later_than(now() + kTrimAfter);
}

void Daemon::forget_inherited() {
  table_.forget_inherited();
  for (const auto& [rdzv_id, job] : std::exchange(inherited_, {}))
    group_->forget(rdzv_id, std::chrono::milliseconds(0));
}

// Returns the policy of the first node.
rendezvous::RoundPolicy Daemon::policy_of(const NodeSpec& spec) const {
  rendezvous::RoundPolicy policy{.min_nodes = spec.min_nodes,
                                 .max_nodes = spec.max_nodes,
                                 .settings = rendezvous::with_defaults(spec.settings),
                                 .jitter_seed = random_number()};
  // The leases that the leader before gave. Alone, we do not know to how many nodes.
  policy.takes_rounds_over = options_.resumes && !options_.has_group();
  const int nodes = options_.has_group() ? inherited_nodes_ : rendezvous::kMaxMembers;
  const auto lease = rendezvous::lease_for({}, nodes);
  policy.recovery_limit = lease.length + rendezvous::kFenceMargin;
  policy.return_limit =
      std::max<std::chrono::nanoseconds>(policy.settings.last_call, policy.recovery_limit);
  return policy;
}

Daemon::HostOrLastWord Daemon::host_of(const std::string& rdzv_id, const NodeSpec& spec,
                                       std::int64_t round) {
  if (is_stopped_)
    return SessionLost{Error(ErrorCode::kUnavailable, "rendezvous: ddprund is ending")};
  // It may have been let in before this process was suspended, and another leads by now.
  if (std::string elsewhere = turned_away(); !elsewhere.empty())
    return SessionLost{Error(ErrorCode::kUnavailable, std::move(elsewhere))};
  if (round > 0) {
    if (const auto ended = ended_job(rdzv_id, round)) return *ended;
  }
  if (const auto known = table_.find(rdzv_id))
    table_.set_members(*known, jobs_.at(*known).host->membership().members().size());
  const auto admitted = table_.admit(rdzv_id, spec, memory_bytes(), round > 0);
  if (!admitted) {
    std::string text = fmt::format("{}; refused {}", admitted.error().message(), spec.hostname);
    std::ranges::replace_if(
        text, [](unsigned char one) { return std::iscntrl(one) != 0; }, '?');
    if (const auto line = refusals_.line(std::move(text), now())) log::warning(*line);
    return SessionLost{admitted.error()};
  }
  if (admitted->is_new) make_job(admitted->job, rdzv_id, spec);
  alarm_.set(table_.look_again_at());
  return jobs_.at(admitted->job).host.get();
}

// Finds who tells a node that the job of this round ended while the node was away. Another job may
// have the id by now.
std::optional<Daemon::HostOrLastWord> Daemon::ended_job(const std::string& rdzv_id,
                                                        std::int64_t round) {
  if (const auto known = table_.find(rdzv_id)) {
    const rendezvous::Membership& membership = jobs_.at(*known).host->membership();
    if (!membership.ended() || membership.round_number() != round) return std::nullopt;
    table_.came_back(*known);
    return jobs_.at(*known).host.get();
  }
  const auto found = inherited_.find(rdzv_id);
  if (found == inherited_.end() || found->second.record.round != round) return std::nullopt;
  const auto state = found->second.state;
  if (state == rendezvous::RecordedJob::State::kRuns) return std::nullopt;
  const bool succeeded = state == rendezvous::RecordedJob::State::kSucceeded;
  return rendezvous::JobEnded{
      .succeeded = succeeded,
      .cause = {.message = succeeded ? "" : "the job failed while this node had no leader"}};
}

void Daemon::make_job(JobNumber number, const std::string& rdzv_id, const NodeSpec& spec) {
  const auto inherited = inherited_.extract(rdzv_id);
  const bool is_inherited =
      !inherited.empty() && inherited.mapped().state == rendezvous::RecordedJob::State::kRuns;
  NodeSpec first = spec;
  // Nodes of before are bound to what they were started with, and a newcomer may be here first.
  if (is_inherited && inherited.mapped().max_nodes > 0) {
    first.min_nodes = inherited.mapped().min_nodes;
    first.max_nodes = inherited.mapped().max_nodes;
    first.settings.node_unit = inherited.mapped().node_unit;
  }
  rendezvous::RecordedJob recorded = is_inherited ? inherited.mapped() : rendezvous::RecordedJob{};
  recorded.min_nodes = first.min_nodes;
  recorded.max_nodes = first.max_nodes;
  recorded.node_unit = first.settings.node_unit;
  auto host = std::make_unique<Host>(loop_, policy_of(first), recorded.record);
  Job job{.host = std::move(host), .recorded = std::move(recorded), .is_recorded = is_inherited};
  job.control = std::make_unique<JobControl>(*job.host, rdzv_id);
  watch(number, job);
  jobs_.emplace(number, std::move(job));
  if (group_) return record_in_group(number, rdzv_id);
  // Its nodes go on without this process: it must not tell some of them that others are gone.
  if (options_.resumes) jobs_.at(number).host->leads = [this] { return !is_stopped_; };
}

void Daemon::watch(JobNumber number, Job& job) {
  job.control->at_end = [this, number] {
    table_.ended(number, now());
    alarm_.set_no_later_than(table_.look_again_at());
  };
  job.host->left_alone = [this, number] {
    if (is_stopped_) return;
    table_.left_alone(number, now());
    left_alone_at_ = now();
    trim_alarm_.set_no_later_than(left_alone_at_ + kTrimAfter);
    alarm_.set(table_.look_again_at());
  };
}

// No node hears of a round, or of the end, before the next leader would know it.
void Daemon::record_in_group(JobNumber number, const std::string& rdzv_id) {
  Host& host = *jobs_.at(number).host;
  host.leads = [this] { return group_ && group_->leads(); };
  host.record_round = [this, number, rdzv_id](rendezvous::JobRecord record,
                                              std::function<void()> recorded) {
    jobs_.at(number).recorded.record = std::move(record);
    this->record(number, rdzv_id, std::move(recorded));
  };
  host.record_end = [this, number, rdzv_id](bool succeeded, std::function<void()> recorded) {
    using State = rendezvous::RecordedJob::State;
    jobs_.at(number).recorded.state = succeeded ? State::kSucceeded : State::kFailed;
    this->record(number, rdzv_id, std::move(recorded));
  };
}

// Writes the record of a job. A late word of an earlier job must not replace the record of the next
// one of its id.
void Daemon::record(JobNumber number, const std::string& rdzv_id, std::function<void()> recorded) {
  const auto last = table_.find(rdzv_id);
  if (last && *last != number && jobs_.at(*last).is_recorded)
    return asio::post(loop_, std::move(recorded));
  Job& job = jobs_.at(number);
  job.is_recorded = true;
  job.recorded.served = 0;
  for (const auto& [other, one] : jobs_)
    job.recorded.served += static_cast<int>(one.host->sessions());
  group_->write(rdzv_id, job.recorded, std::move(recorded));
  if (job.recorded.state != rendezvous::RecordedJob::State::kRuns)
    group_->forget(rdzv_id, kKeepEnded);
}

// From the loop, where no session is at work: hosts may go.
void Daemon::look() {
  const JobTable::Due due = table_.due(now());
  for (const JobNumber number : due.give_up)
    jobs_.at(number).control->give_up("all nodes are gone");
  for (const JobNumber number : due.forget) jobs_.erase(number);
  alarm_.set(table_.look_again_at());
}

// Moves jobs that have ended to new memory. They were made while many nodes came, and each of their
// small blocks holds a page back. A node that still comes back to its job finds it here as before.
void Daemon::compact() {
  std::map<JobNumber, Job> all;
  for (auto& [number, job] : jobs_) {
    Job& kept = all.emplace(number, std::move(job)).first->second;
    if (kept.is_compact || !kept.host->is_finished() || kept.control->waiters() > 0) continue;
    auto host = std::make_unique<Host>(loop_, *kept.host);
    host->leads = kept.host->leads;
    auto control = std::make_unique<JobControl>(*host, *kept.control);
    kept.control = std::move(control);
    kept.host = std::move(host);
    kept.is_compact = true;
    watch(number, kept);
  }
  jobs_ = std::move(all);
  table_.compact();
}

// gRPC needs a moment to close the connections of the last job: what it frees later is for once
// more.
void Daemon::give_memory_back() {
  service_->tidy();
  compact();
  daemon::give_memory_back();
  if (now() < left_alone_at_ + kTrimAfter) trim_alarm_.set(left_alone_at_ + kTrimAfter);
}

std::vector<ShownJob> Daemon::shown_jobs() const {
  std::vector<ShownJob> all;
  for (const JobNumber number : table_.shown()) {
    const Job& job = jobs_.at(number);
    all.push_back({number, job.host.get(), job.control.get()});
  }
  return all;
}

std::optional<rendezvous::InheritedJob> Daemon::inherited(const std::string& rdzv_id) const {
  using State = rendezvous::RecordedJob::State;
  using rendezvous::InheritedJob;
  const auto found = inherited_.find(rdzv_id);
  if (found == inherited_.end()) return std::nullopt;
  const State state = found->second.state;
  if (state == State::kRuns) return InheritedJob::kRuns;
  return state == State::kSucceeded ? InheritedJob::kSucceeded : InheritedJob::kFailed;
}

std::vector<JobControl*> Daemon::jobs() const {
  std::vector<JobControl*> all;
  for (const JobNumber number : table_.shown()) all.push_back(jobs_.at(number).control.get());
  return all;
}

}  // namespace ddprun::daemon
