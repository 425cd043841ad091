// Runs tests/rendezvous/failover/scripts/*.txt through Failover, with a time that the scripts set.
// An event prints its actions and then the state, if that has changed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>

#include "rendezvous/failover/failover.h"
#include "tests/support/script.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::seconds;
using support::Command;

const Time kStart = Time{} + std::chrono::hours(1);

std::string print_time(Time time) {
  if (time == Time{}) return "none";
  return fmt::format("{}s", std::chrono::duration<double>(time - kStart).count());
}

Time make_time(const Command& command, const std::string& key) {
  const std::string text = command.value(key, "");
  return text.empty()
             ? Time{}
             : kStart + std::chrono::milliseconds(static_cast<int>(std::stod(text) * 1000));
}

bool is_set(const Command& command, const std::string& key, int otherwise = 0) {
  return command.number(key, otherwise) == 1;
}

ErrorCode make_code(const std::string& code) {
  if (code == "lost_leadership") return ErrorCode::kLostLeadership;
  if (code == "timed_out") return ErrorCode::kTimedOut;
  if (code == "rejected") return ErrorCode::kRejected;
  EXPECT_EQ(code, "unavailable");
  return ErrorCode::kUnavailable;
}

SessionLost make_loss(const Command& command) {
  return {.error = Error(make_code(command.value("code", "unavailable")),
                         command.value("why", "it_broke")),
          .is_fenced = is_set(command, "fenced"),
          .was_reached = is_set(command, "reached", 1),
          .was_closed = is_set(command, "closed"),
          .lease_ends = make_time(command, "lease"),
          .was_suspended = is_set(command, "was_suspended"),
          .may_return = is_set(command, "may_return", 1),
          .host_returns = is_set(command, "returns")};
}

HostMessage make_message(const Command& command) {
  const std::string& verb = command.words.at(0);
  const std::int64_t round = std::stoll(command.value("round", "1"));
  if (verb == "publish")
    return RoundPublished{.round = {.number = round, .node_count = command.number("of", 2)},
                          .seat = {.node_rank = command.number("seat", 0)}};
  if (verb == "break") return RoundBroken{.round = round, .cause = {.message = "it"}};
  if (verb == "end") return JobEnded{.succeeded = is_set(command, "succeeded", 1)};
  EXPECT_EQ(verb, "lose");
  return make_loss(command);
}

// Prints what a session is told.
class Printer final : public Session {
 public:
  void join(const NodeSpec& /*node*/) override { text += " join"; }
  void resume(const ResumeRequest& node) override {
    static constexpr const char* kStates[] = {"joining", "running", "succeeded", "stopping"};
    text += fmt::format(" resume round={} {}", node.round, kStates[static_cast<int>(node.state)]);
  }
  void report_failure(std::int64_t round, const Failure& /*failure*/) override {
    text += fmt::format(" failure round={}", round);
  }
  void report_success(std::int64_t /*round*/) override { text += " success"; }
  void leave(const Failure& /*reason*/) override { text += " leave"; }
  void gone() override { text += " gone"; }
  std::optional<WaitStatus> wait_status() const override { return {}; }

  std::string text;
};

std::string print_message(const HostMessage& message) {
  if (const auto* published = std::get_if<RoundPublished>(&message))
    return fmt::format("published round={}", published->round.number);
  if (const auto* broken = std::get_if<RoundBroken>(&message))
    return fmt::format("broken round={}{} by {}: {}", broken->round,
                       broken->is_fenced ? " fenced" : "", broken->cause.hostname,
                       broken->cause.message);
  if (const auto* ended = std::get_if<JobEnded>(&message))
    return ended->succeeded ? "ended well" : "ended: " + ended->cause.message;
  const auto& lost = std::get<SessionLost>(message);
  return fmt::format("lost{}: {}", lost.is_fenced ? " fenced" : "", lost.error.message());
}

std::string print_record(const JobRecord& record) {
  return fmt::format("round={} others={} leader_has_seat={}{}", record.round, record.others,
                     record.leader_has_seat ? 1 : 0, record.is_remembered ? " remembered" : "");
}

class Script {
 public:
  std::string run(const Command& command) {
    const std::string& verb = command.words.at(0);
    if (verb == "same" || verb == "elected") {
      failover_.emplace(
          FailoverRules{.policy = verb == "same" ? HostPolicy::kSameHost : HostPolicy::kElectedHost,
                        .keeps_workers = is_set(command, "keeps", 1),
                        .rejoin_limit = seconds(command.number("rejoin", 60))});
      state_.clear();
      now_ = kStart;
      return print(failover_->start());
    }
    if (verb == "at") {
      const double after = std::stod(command.words.at(1));
      now_ = kStart + std::chrono::milliseconds(static_cast<int>(after * 1000));
      return print(failover_->time_passed(now_));
    }
    if (verb == "wait")
      return failover_->wait_line(seconds(std::stoi(command.words.at(1))), "why", now_) + '\n';
    return print(tell(verb, command));
  }

 private:
  FailoverActions tell(const std::string& verb, const Command& command) {
    const std::int64_t round = std::stoll(command.value("round", "1"));
    if (verb == "join") return failover_->joined({.node_id = "a"});
    if (verb == "fail") return failover_->failed(round, {.message = "it"});
    if (verb == "done") return failover_->succeeded(round);
    if (verb == "leave") return failover_->left({.message = "told"});
    if (verb == "gone") return failover_->gone();
    if (verb == "admitted") return failover_->admitted(now_);
    if (verb == "died") return failover_->host_died();
    if (verb == "leader")
      return failover_->leader_found(command.words.at(1), make_time(command, "lease"));
    if (verb == "lead")
      return failover_->elected({.round = std::stoll(command.value("round", "0")),
                                 .others = command.number("others", 0),
                                 .leader_has_seat = is_set(command, "leader_has_seat")});
    if (verb == "lose_leadership")
      return failover_->lost_leadership("it", is_set(command, "was_suspended"), now_);
    if (verb == "job_over") return failover_->job_over(is_set(command, "succeeded"));
    if (verb == "give_up") return failover_->gave_up(Error(ErrorCode::kTimedOut, "no_leader"));
    return failover_->message(make_message(command), now_);
  }

  std::string print(const FailoverActions& actions) {
    std::string text;
    for (const FailoverAction& action : actions)
      text += std::visit([this](const auto& one) { return print_action(one); }, action) + '\n';
    const std::string state = print_state();
    if (state != std::exchange(state_, state)) text += state + '\n';
    return text;
  }

  std::string print_state() const {
    static constexpr const char* kHosts[] = {"searching", "connecting", "following", "leading",
                                             "over"};
    static constexpr const char* kWorkers[] = {"none", "running", "on lease", "ending", "fenced"};
    const Time look = failover_->look_again_at();
    return fmt::format("= {}, workers {}, until {}{}", kHosts[static_cast<int>(failover_->host())],
                       kWorkers[static_cast<int>(failover_->workers())],
                       print_time(failover_->workers_until().value_or(Time{})),
                       look == Time::max() ? "" : ", look again at " + print_time(look));
  }

  static std::string print_action(const OpenSession& /*action*/) { return "open"; }
  static std::string print_action(const CloseSession& /*action*/) { return "close"; }
  static std::string print_action(const AbandonSession& /*action*/) { return "abandon"; }
  static std::string print_action(const FenceSession& /*action*/) { return "fence"; }
  static std::string print_action(const EndFencedSession& /*action*/) { return "end fenced"; }
  static std::string print_action(const PassOn& /*action*/) { return "pass on"; }
  std::string print_action(const Replay& /*action*/) {
    Printer printer;
    failover_->replay_to(printer);
    return "replay:" + printer.text;
  }
  static std::string print_action(const Deliver& action) {
    return "deliver " + print_message(action.message);
  }
  static std::string print_action(const LimitWorkers& action) {
    return "limit workers: " + print_time(action.until);
  }
  static std::string print_action(const BeginWait& /*action*/) { return "begin wait"; }
  static std::string print_action(const EndWait& /*action*/) { return "end wait"; }
  static std::string print_action(const Log& action) {
    return (action.is_warning ? "warn: " : "info: ") + action.line;
  }
  static std::string print_action(const ProbeHost& /*action*/) { return "probe"; }
  static std::string print_action(const StopProbing& /*action*/) { return "stop probing"; }
  static std::string print_action(const LookForLeader& action) {
    return action.was_closed ? "look for leader, closed" : "look for leader";
  }
  static std::string print_action(const AcceptLeader& /*action*/) { return "accept leader"; }
  static std::string print_action(const RecordJob& action) {
    return "record " + print_record(action.record);
  }
  static std::string print_action(const HostHere& action) {
    return "host " + print_record(action.record);
  }
  static std::string print_action(const DismissNodes& action) {
    return "dismiss nodes: " + action.why.message();
  }
  static std::string print_action(const StopHosting& /*action*/) { return "stop hosting"; }
  static std::string print_action(const Withdraw& /*action*/) { return "withdraw"; }
  static std::string print_action(const RoundBegins& /*action*/) { return "round begins"; }
  static std::string print_action(const EndJob& action) {
    return action.succeeded ? "end job, well" : "end job";
  }

  std::optional<Failover> failover_;
  Time now_ = kStart;
  std::string state_;  // as printed last
};

class FailoverScript : public testing::TestWithParam<std::string> {};

TEST_P(FailoverScript, PrintsWhatIsWritten) {
  Script script;
  support::run_script(std::string(DDPRUN_SCRIPTS) + "/" + GetParam() + ".txt",
                      [&](const Command& command) { return script.run(command); });
}

INSTANTIATE_TEST_SUITE_P(Scripts, FailoverScript,
                         testing::ValuesIn(support::script_names(DDPRUN_SCRIPTS)),
                         [](const auto& script) { return script.param; });

}  // namespace
}  // namespace ddprun::rendezvous
