#include "daemon/ctl_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/numbers.h"
#include "daemon/daemon_options.h"
#include "daemon/parsed_words.h"
#include "launcher/options/flag_values.h"

namespace ddprun::daemon {
namespace {

constexpr const char* kEndpointVariable = "DDPRUN_ENDPOINT";

constexpr const char* kHelp = R"(usage: ddpctl [OPTION]... COMMAND

Shows the jobs of a rendezvous and takes nodes out of them. The rendezvous is in the agent
that hosts a job, or in ddprund. Without an endpoint, jobs, status, nodes, top and stacks show
your own jobs on this host, also those of one node.

commands:
  jobs                     every job that is there, one line each
  status [JOB]             a job: round, restarts, nodes, what it waits for, last incidents
  nodes JOB                the nodes of a job
  top [JOB]                ranks by state, a timeline, and the steps of this host's ranks; anew
                           every 2 s until ctrl-C, once if it is not written to a terminal
  drain JOB NODE           take a node out: its workers get SIGTERM, it exits 0, the others go on;
                           no restart is spent
  forgive JOB NODE         a node has no strikes any more, and sits out no longer
  resize JOB MIN:MAX       rounds have MIN to MAX nodes from now on
  checkpoint JOB           all ranks save after one step, and go on
  stop JOB                 end a job on all nodes, as SIGTERM does
  wait JOB                 block until a job has ended
  stacks [JOB [RANK]...]   the Python stacks of a job's workers on this host; nothing stops them
JOB is the --rdzv-id; NODE a node rank, a hostname or a node's id; RANK a global rank. On this
host JOB may also be the pid of ddprun, or the job's log folder.

options:
  --endpoint=HOST[:PORT]   the rendezvous, as in --rdzv-endpoint (default: $DDPRUN_ENDPOINT;
                           port 29400); HOST[:PORT],… for a group of ddprund: the one that leads
                           answers
  --token-file=PATH        a file with the token (default: $DDPRUN_TOKEN, else the file
                           $DDPRUN_TOKEN_FILE); without one ddpctl works on the
                           rendezvous's own host, as the same user or root
  --tls-ca=PATH, --tls-cert=PATH, --tls-key=PATH
                           PEM files, all three, where the rendezvous wants TLS
  --deadline=SECONDS       drain: SIGKILL for workers that still run then
                           (default: the node's --shutdown-timeout)
  --json                   print JSON
  -h, --help               this text
  --version                the version

exit codes:
  0  done; wait: the job succeeded
  1  refused, also for want of TLS; wait: the job failed or was stopped
  2  usage error
  3  nobody answers at the endpoint
  4  there is no such job or node
  5  the token is missing or wrong
)";

enum Flag { kEndpoint = 256, kTokenFile, kTlsCa, kTlsCert, kTlsKey, kDeadline, kJson, kVersion };

constexpr std::array<option, 10> kFlags = {{{"endpoint", required_argument, nullptr, kEndpoint},
                                            {"token-file", required_argument, nullptr, kTokenFile},
                                            {"tls-ca", required_argument, nullptr, kTlsCa},
                                            {"tls-cert", required_argument, nullptr, kTlsCert},
                                            {"tls-key", required_argument, nullptr, kTlsKey},
                                            {"deadline", required_argument, nullptr, kDeadline},
                                            {"json", no_argument, nullptr, kJson},
                                            {"help", no_argument, nullptr, 'h'},
                                            {"version", no_argument, nullptr, kVersion},
                                            {nullptr, 0, nullptr, 0}}};

struct Command {
  std::string_view name;
  CtlCommand command;
  std::string_view operands;
  std::size_t fewest;
  std::size_t most;
};
constexpr std::size_t kManyOperands = 1025;
constexpr std::array<Command, 11> kCommands = {
    {{"jobs", CtlCommand::kJobs, "", 0, 0},
     {"status", CtlCommand::kStatus, "[JOB]", 0, 1},
     {"nodes", CtlCommand::kNodes, "JOB", 1, 1},
     {"top", CtlCommand::kTop, "[JOB]", 0, 1},
     {"drain", CtlCommand::kDrain, "JOB NODE", 2, 2},
     {"forgive", CtlCommand::kForgive, "JOB NODE", 2, 2},
     {"resize", CtlCommand::kResize, "JOB MIN:MAX", 2, 2},
     {"checkpoint", CtlCommand::kCheckpoint, "JOB", 1, 1},
     {"stop", CtlCommand::kStop, "JOB", 1, 1},
     {"wait", CtlCommand::kWait, "JOB", 1, 1},
     {"stacks", CtlCommand::kStacks, "[JOB [RANK]...]", 0, kManyOperands}}};

CtlUsageError usage(std::string message) { return {std::move(message) + "; see ddpctl --help"}; }

// The values of the flags, and the words that are left.
struct CtlFlags {
  std::optional<std::string> endpoint;
  std::string token_file;
  rendezvous::TlsFiles tls{};
  std::optional<std::chrono::milliseconds> deadline;
  bool json = false;
  std::vector<std::string> operands;
};

std::optional<CtlUsageError> set_deadline(CtlFlags& given, const std::string& text) {
  const auto seconds = launcher::parse_seconds(text);
  if (!seconds) return usage(fmt::format("--deadline={}: {}", text, seconds.error().message()));
  if (seconds->count() == 0)
    return usage(fmt::format("--deadline={}: expected more than 0 seconds", text));
  given.deadline = *seconds;
  return std::nullopt;
}

std::variant<CtlFlags, CtlAnswer, CtlUsageError> read_flags(const std::vector<std::string>& words) {
  const auto sorted = sort_words(words, kFlags);
  if (!sorted) return usage(sorted.error().message());
  CtlFlags given{.operands = sorted->operands};
  for (const auto& [flag, text] : sorted->flags) {
    switch (flag) {
      case kEndpoint:
        given.endpoint = text;
        break;
      case kTokenFile:
        given.token_file = text;
        break;
      case kTlsCa:
        given.tls.ca = text;
        break;
      case kTlsCert:
        given.tls.cert = text;
        break;
      case kTlsKey:
        given.tls.key = text;
        break;
      case kDeadline:
        if (auto wrong = set_deadline(given, text)) return *wrong;
        break;
      case kJson:
        given.json = true;
        break;
      case 'h':
        return CtlAnswer{kHelp};
      default:
        return CtlAnswer{"ddpctl " DDPRUN_VERSION "\n"};
    }
  }
  return given;
}

std::optional<CtlUsageError> set_command(CtlOptions& options, const CtlFlags& given) {
  const Command* found = nullptr;
  for (const Command& command : kCommands) {
    if (command.name == given.operands.front()) found = &command;
  }
  if (found == nullptr)
    return usage(fmt::format(
        "{}: expected one of jobs, status, nodes, top, drain, forgive, resize, checkpoint, stop, "
        "wait and stacks",
        given.operands.front()));
  options.command = found->command;
  const std::size_t operands = given.operands.size() - 1;
  if (operands < found->fewest || operands > found->most)
    return usage(fmt::format("{} takes {}, not {} operand(s)", found->name,
                             found->operands.empty() ? "no operand" : found->operands, operands));
  if (given.deadline && options.command != CtlCommand::kDrain)
    return usage("--deadline is for drain only");
  return std::nullopt;
}

std::optional<CtlUsageError> set_ranks(CtlOptions& options, const std::vector<std::string>& words) {
  rendezvous::ShowStacks verb;
  for (std::size_t i = 2; i < words.size(); ++i) {
    const auto rank = parse_whole<int>(words[i]);
    if (!rank || *rank < 0)
      return usage(
          fmt::format("stacks {} {}: expected a global rank, 0 or more", words[1], words[i]));
    verb.ranks.push_back(*rank);
  }
  options.question.verb = std::move(verb);
  return std::nullopt;
}

std::optional<CtlUsageError> set_verb(CtlOptions& options, const CtlFlags& given) {
  const std::vector<std::string>& words = given.operands;
  if (words.size() > 1) options.question.job = words[1];
  if (words.size() > 1 && words[1].empty()) return usage("JOB is empty: expected a --rdzv-id");
  switch (options.command) {
    case CtlCommand::kJobs:
    case CtlCommand::kStatus:
    case CtlCommand::kNodes:
    case CtlCommand::kTop:
      options.question.verb = rendezvous::ShowJobs{};
      return std::nullopt;
    case CtlCommand::kDrain:
      options.question.verb =
          rendezvous::DrainNode{words[2], given.deadline.value_or(std::chrono::milliseconds(0))};
      return std::nullopt;
    case CtlCommand::kForgive:
      options.question.verb = rendezvous::ForgiveNode{words[2]};
      return std::nullopt;
    case CtlCommand::kResize: {
      const auto nodes = launcher::parse_node_count(words[2]);
      if (!nodes) return usage(fmt::format("resize {}: {}", words[2], nodes.error().message()));
      options.question.verb = rendezvous::ResizeJob{nodes->min, nodes->max};
      return std::nullopt;
    }
    case CtlCommand::kCheckpoint:
      options.question.verb = rendezvous::SaveCheckpoint{};
      return std::nullopt;
    case CtlCommand::kStop:
      options.question.verb = rendezvous::StopJob{};
      return std::nullopt;
    case CtlCommand::kWait:
      options.question.verb = rendezvous::AwaitEnd{};
      return std::nullopt;
    case CtlCommand::kStacks:
      return set_ranks(options, words);
  }
  return std::nullopt;
}

// These flags are for a rendezvous.
std::optional<CtlUsageError> refuse_for_stacks(const CtlFlags& given) {
  std::string flags;
  if (given.tls.is_set()) flags = "--tls-ca, --tls-cert and --tls-key are";
  if (!given.token_file.empty()) flags = "--token-file is";
  if (given.endpoint) flags = "--endpoint is";
  if (flags.empty()) return std::nullopt;
  return usage(flags + " not for stacks: each node shows its own ranks");
}

std::optional<CtlUsageError> set_endpoint(CtlOptions& options, const CtlFlags& given,
                                          const EnvLookup& env) {
  if (options.command == CtlCommand::kStacks) return refuse_for_stacks(given);
  const std::string text = given.endpoint.value_or(env(kEndpointVariable).value_or(""));
  // These flags are for a rendezvous: an endpoint was forgotten.
  const bool means_rendezvous = given.endpoint || !given.token_file.empty() || given.tls.is_set();
  const bool shows = std::holds_alternative<rendezvous::ShowJobs>(options.question.verb);
  if (text.empty() && !means_rendezvous && shows) return std::nullopt;
  if (text.empty())
    return usage(
        fmt::format("no endpoint: expected --endpoint=HOST:PORT or {}", kEndpointVariable));
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const auto endpoint = launcher::parse_endpoint(text.substr(begin, end - begin));
    if (!endpoint) return usage(fmt::format("--endpoint={}: {}", text, endpoint.error().message()));
    options.endpoints.push_back(
        {endpoint->host, endpoint->port.value_or(launcher::kDefaultRendezvousPort)});
    begin = end + 1;
  }
  return std::nullopt;
}

}  // namespace

std::variant<CtlOptions, CtlAnswer, CtlUsageError> parse_ctl(const std::vector<std::string>& words,
                                                             const EnvLookup& env) {
  const auto read = read_flags(words);
  if (const auto* answer = std::get_if<CtlAnswer>(&read)) return *answer;
  if (const auto* wrong = std::get_if<CtlUsageError>(&read)) return *wrong;
  const CtlFlags& given = std::get<CtlFlags>(read);
  if (given.operands.empty())
    return usage(
        "no command: expected jobs, status, nodes, top, drain, forgive, resize, checkpoint, stop, "
        "wait or stacks");
  if (const auto missing = missing_tls_flag(given.tls); !missing.empty()) return usage(missing);
  CtlOptions options{.token_file = given.token_file, .tls = given.tls, .json = given.json};
  if (auto wrong = set_command(options, given)) return *wrong;
  if (auto wrong = set_verb(options, given)) return *wrong;
  if (auto wrong = set_endpoint(options, given, env)) return *wrong;
  return options;
}

}  // namespace ddprun::daemon
