// Runs tests/rendezvous/scripts/*.txt through Membership, with a time that the scripts set. The
// commands are in run() and tell(), what they print is in print().
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "rendezvous/control/operator_verbs.h"
#include "rendezvous/core/membership.h"
#include "tests/support/script.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::seconds;
using support::Command;

const Time kStart = Time{} + std::chrono::hours(1);

std::string in_seconds(Time time) {
  return fmt::format("{}s", std::chrono::duration<double>(time - kStart).count());
}

// "4" or "1:3"; times are in seconds.
RoundPolicy make_policy(const Command& command) {
  const std::string nodes = command.value("nodes", "1");
  const auto colon = nodes.find(':');
  const int min = std::stoi(nodes);
  return {.min_nodes = min,
          .max_nodes = colon == std::string::npos ? min : std::stoi(nodes.substr(colon + 1)),
          .settings = {.join_timeout = seconds(command.number("join_timeout", 600)),
                       .last_call = seconds(command.number("last_call", 30)),
                       .resize_wait = seconds(command.number("resize_wait", 1)),
                       .resize_interval = seconds(command.number("resize_interval", 30)),
                       .node_unit = command.number("unit", 1)},
          .recovery_limit = seconds(command.number("recovery_limit", 4)),
          .return_limit = seconds(command.number("return_limit", 30)),
          .takes_rounds_over = command.number("takes_over", 0) == 1};
}

// Makes the record that another leader left: `policy … round=4`.
JobRecord make_record(const Command& command) {
  return {.round = std::stoll(command.value("round", "0")),
          .restarts = command.number("spent", 0),
          .rules = {.max_restarts = command.number("restarts", 0)},
          .others = command.number("others", 0),
          .leader_has_seat = command.number("leader_has_seat", 1) == 1,
          .leader = "host-x",
          .is_remembered = command.number("remembered", 0) == 1};
}

NodeState make_state(const std::string& state) {
  if (state == "running") return NodeState::kRunning;
  if (state == "succeeded") return NodeState::kSucceeded;
  if (state == "stopping") return NodeState::kStopping;
  EXPECT_EQ(state, "joining");
  return NodeState::kJoining;
}

// "a:0,60" is the host of a with strikes of that age.
std::string known_strikes(const Command& command) {
  const std::string known = command.value("known", "");
  const auto colon = known.find(':');
  if (colon == std::string::npos) return {};
  return fmt::format("host-{} strikes={} pauses=1 left=60\n", known.substr(0, colon),
                     known.substr(colon + 1));
}

NodeFault make_fault(const std::string& text) {
  constexpr std::string_view kFaults[] = {"none",   "lost",       "kernel", "device",
                                          "memory", "standstill", "exit"};
  const auto* const found = std::ranges::find(kFaults, text);
  EXPECT_NE(found, std::end(kFaults)) << text;
  return static_cast<NodeFault>(found - kFaults);
}

NodeSpec make_spec(const std::string& name, const Command& command) {
  return {.node_id = command.value("id", name),
          .hostname = "host-" + command.value("host", name),
          .local_world_size = command.number("slots", 1),
          .role = command.value("role", "default"),
          .node_rank = command.number("rank", command.number("preferred", -1)),
          .rank_is_preferred = command.values.contains("preferred"),
          .store_address = command.value("store", ""),
          .store_port = static_cast<std::uint16_t>(command.number("port", 5000)),
          .max_restarts = command.number("restarts", 0),
          .most_without_progress = command.number("without_progress", 0),
          .min_nodes = command.number("min", 0),
          .max_nodes = command.number("max", 0),
          .strike_rules = {.most = command.number("strikes", 0),
                           .half_life = seconds(command.number("half_life", 3600))},
          .strikes = known_strikes(command)};
}

class Script {
 public:
  std::string run(const Command& command) {
    const std::string& verb = command.words.at(0);
    if (verb == "policy") {
      membership_.emplace(make_policy(command), make_record(command));
      return {};
    }
    if (verb == "at") {
      now_ = kStart + seconds(std::stoi(command.words.at(1)));
      return print(membership_->tick(now_));
    }
    if (verb == "resize")
      return print(resize(*membership_, command.number("min", 0), command.number("max", 0), now_));
    if (verb == "stop") return print(stop(*membership_, command.value("by", ""), now_));
    if (verb == "forgive") {
      const auto text = forgive(*membership_, command.words.at(1));
      return (text ? *text : "refused: " + text.error().message()) + '\n';
    }
    if (verb == "drain") {
      const auto session = find_node(*membership_, command.words.at(1));
      if (!session) return "refused: " + session.error().message() + '\n';
      return print(drain(*membership_, *session, seconds(command.number("deadline", 0)), now_));
    }
    return print(tell(verb, command.words.at(1), command));
  }

 private:
  // A name is a session; after `lose` the same name is a new one.
  Outcome tell(const std::string& verb, const std::string& name, const Command& command) {
    auto [found, is_new] = sessions_.try_emplace(name, last_session_ + 1);
    if (is_new) names_[found->second] = name;
    const SessionId session = found->second;
    last_session_ = std::max(last_session_, session);
    const Failure failure{.hostname = "host-" + name,
                          .rank = command.number("rank", -1),
                          .exit_code = command.number("exit", 1),
                          .message = command.value("why", "it"),
                          .step = command.values.contains("step")
                                      ? std::optional<std::int64_t>(command.number("step", 0))
                                      : std::nullopt,
                          .ends_job = command.number("ends_job", 0) == 1,
                          .fault = make_fault(command.value("fault", "none"))};
    const std::int64_t round = std::stoll(command.value("round", "1"));
    if (verb == "join")
      return membership_->joined(session, specs_[session] = make_spec(name, command),
                                 {command.value("from", "127.0.0.1"), command.value("via", ""),
                                  command.number("proven", 1) == 1},
                                 now_);
    if (verb == "resume") {
      const ResumeRequest node{.spec = specs_[session] = make_spec(name, command),
                               .round = round,
                               .seat = command.number("seat", 0),
                               .node_count = command.number("of", 2),
                               .restarts = command.number("spent", 0),
                               .state = make_state(command.value("state", "running")),
                               .cause = failure,
                               .is_resize = command.number("resize", 0) == 1};
      return membership_->resumed(
          session, node, {command.value("from", "127.0.0.1"), command.value("via", "")}, now_);
    }
    if (verb == "open") {
      membership_->opened(session);
      return {};
    }
    if (verb == "fail") return membership_->failed(session, round, failure, now_);
    if (verb == "done") return membership_->succeeded(session, round, now_);
    if (verb == "leave") return membership_->left(session, failure, now_);
    if (verb != "lose") ADD_FAILURE() << "no such command: " << verb;
    sessions_.erase(found);
    return membership_->session_lost(session, "its connection to the rendezvous ended", now_);
  }

  std::string print(const Result<Outcome>& outcome) {
    return outcome ? print(*outcome) : "refused: " + outcome.error().message() + '\n';
  }
  std::string print(const Outcome& outcome) {
    std::string text;
    for (const std::string& note : outcome.notes) text += "note " + note + '\n';
    if (outcome.published)
      text += print_round(*outcome.published) + print_sessions(*outcome.published);
    for (const Delivery& delivery : outcome.deliveries)
      text += names_.at(delivery.to) + ": " +
              std::visit([](const auto& n) { return print_message(n); }, delivery.message) + '\n';
    const Time next = membership_->look_again_at();
    if (next != Time::max()) text += "look again at " + in_seconds(next) + '\n';
    return text;
  }

  std::string print_round(const Publication& published) {
    const Round& round = published.round;
    std::string text =
        fmt::format("round {} restart={} world={} master={}:{}\n", round.number,
                    round.restart_count, round.world_size, round.master_addr, round.master_port);
    for (std::size_t i = 0; i < published.seats.size(); ++i) {
      const Seat& seat = published.seats[i];
      const NodeSpec& spec = specs_.at(published.sessions.at(i));
      text +=
          fmt::format("  {} ranks {}-{} {} ranks {}-{} of {}\n", spec.node_id, seat.first_rank,
                      seat.first_rank + spec.local_world_size - 1, spec.role, seat.role_first_rank,
                      seat.role_first_rank + spec.local_world_size - 1, seat.role_world_size);
    }
    return text;
  }
  std::string print_sessions(const Publication& published) {
    std::string text;
    for (std::size_t i = 0; i < published.sessions.size(); ++i)
      text += fmt::format("{}: published round={} seat={}\n", names_.at(published.sessions[i]),
                          published.round.number, published.seats.at(i).node_rank);
    return text;
  }
  static std::string print_message(const RoundPublished& message) {
    return fmt::format("published again round={} seat={}", message.round.number,
                       message.seat.node_rank);
  }
  static std::string print_cause(const Failure& cause) {
    return fmt::format("{} rank={} exit={}: {}", cause.hostname, cause.rank, cause.exit_code,
                       cause.message);
  }
  static std::string print_message(const RoundBroken& message) {
    return fmt::format("{} round={} by {}", message.is_resize ? "resize" : "broken", message.round,
                       print_cause(message.cause));
  }
  static std::string one_line(std::string text) {
    std::ranges::replace(text, '\n', ';');
    return text;
  }
  static std::string print_message(const JobEnded& message) {
    if (message.succeeded) return "ended well";
    return "ended by " + print_cause(message.cause) +
           (message.no_progress ? "; " + message.no_progress->sentence : "") +
           (message.strikes.empty() ? "" : "; " + one_line(message.strikes));
  }
  static std::string print_message(const SessionLost& message) {
    return "lost: " + message.error.message();
  }

  static std::string print_message(const Drain& message) {
    return fmt::format("drain deadline={}s", message.deadline.count() / 1000);
  }

  static std::string print_message(const Look& message) {
    return fmt::format("look round={}", message.round);
  }
  static std::string print_message(const StandstillVerdict& message) {
    return "verdict: " + message.verdict.sentence;
  }
  static std::string print_message(const ReplicaQuestion& message) {
    return fmt::format("question round={}", message.round);
  }
  static std::string print_message(const ReplicaVerdict& message) {
    return "verdict: " + message.sentence;
  }
  static std::string print_message(const StepOrder& message) {
    return fmt::format("step {}", message.step);
  }
  static std::string print_message(const StragglerVerdict& message) {
    return "verdict: " + message.sentence;
  }

  std::optional<Membership> membership_;
  Time now_ = kStart;
  SessionId last_session_ = 0;
  std::map<std::string, SessionId> sessions_;
  std::map<SessionId, std::string> names_;
  std::map<SessionId, NodeSpec> specs_;
};

class MembershipScript : public testing::TestWithParam<std::string> {};

TEST_P(MembershipScript, PrintsWhatIsWritten) {
  Script script;
  support::run_script(std::string(DDPRUN_SCRIPTS) + "/" + GetParam() + ".txt",
                      [&](const Command& command) { return script.run(command); });
}

INSTANTIATE_TEST_SUITE_P(Scripts, MembershipScript,
                         testing::ValuesIn(support::script_names(DDPRUN_SCRIPTS)),
                         [](const auto& script) { return script.param; });

}  // namespace
}  // namespace ddprun::rendezvous
