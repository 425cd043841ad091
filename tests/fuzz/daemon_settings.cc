// The command lines of ddprund and ddpctl, and ddprund's JSON file. The input is text: a word a
// line, an empty line, then what every file holds. A bad line is one clear error. A good one is
// within its bounds, and is the same when it is written as flags and read again.
#include <fmt/format.h>

#include <boost/asio/ip/address.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/assert.h"
#include "daemon/ctl_options.h"
#include "daemon/daemon_options.h"
#include "tests/fuzz/script_input.h"

namespace ddprun::daemon {
namespace {

using Words = std::vector<std::string>;

// The text that read() finds, whatever the path: ReadConfig is a plain function.
std::string file_text;

Result<std::string> read(const std::string& path) {
  if (path == "absent") return Error(ErrorCode::kNotFound, "expected a readable file");
  return file_text;
}

// A zero byte ends a word, as it does for the kernel.
Words split(std::string_view text) {
  Words words;
  file_text.clear();
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty()) {
      file_text = text;
      break;
    }
    words.emplace_back(std::string(line).c_str());
  }
  return words;
}

bool is_one_line(const std::string& text) {
  return !text.empty() && text.find('\n') == std::string::npos;
}

std::string seconds(std::chrono::milliseconds time) {
  return fmt::format("{}.{:03}", time.count() / 1000, time.count() % 1000);
}

void add_path(Words& words, const char* flag, const std::string& path) {
  if (!path.empty()) words.push_back(fmt::format("--{}={}", flag, path));
}

void add_tls(Words& words, const rendezvous::TlsFiles& tls) {
  add_path(words, "tls-ca", tls.ca);
  add_path(words, "tls-cert", tls.cert);
  add_path(words, "tls-key", tls.key);
}

std::string written(const std::string& host, int port) {
  const bool is_v6 = host.find(':') != std::string::npos;
  return is_v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

template <typename Endpoints>
std::string written(const Endpoints& endpoints) {
  std::string text;
  for (const auto& one : endpoints)
    text += (text.empty() ? "" : ",") + written(one.host, int{one.port});
  return text;
}

void add_group(Words& words, const rendezvous::EtcdPlan& etcd, const std::string& group) {
  words.push_back("--etcd-endpoint=" + written(etcd.members));
  words.push_back("--group=" + group);
  std::string conf = "etcd_prefix=" + etcd.prefix;
  if (etcd.with_tls) conf += ",protocol=https";
  for (const auto& [key, text] :
       {std::pair("cacert", etcd.ca_file), std::pair("cert", etcd.cert_file),
        std::pair("key", etcd.key_file), std::pair("username", etcd.username),
        std::pair("password", etcd.password)})
    if (!text.empty()) conf += fmt::format(",{}={}", key, text);
  words.push_back("--etcd-conf=" + conf);
}

Words written(const DaemonOptions& options) {
  const JobLimits& limits = options.limits;
  Words words = {"--listen=" + written(options.address, int{options.port}),
                 fmt::format("--resume={}", options.resumes ? "on" : "off"),
                 fmt::format("--max-jobs={}", limits.jobs),
                 fmt::format("--max-nodes-per-job={}", limits.nodes_per_job),
                 fmt::format("--max-nodes={}", limits.nodes),
                 fmt::format("--forget-after={}", seconds(limits.forget_after)),
                 fmt::format("--max-ended-jobs={}", limits.ended_jobs)};
  if (limits.memory_bytes > 0)
    words.push_back(fmt::format("--max-memory={}", limits.memory_bytes >> 20));
  if (options.http)
    words.push_back("--http=" + written(options.http->address, int{options.http->port}));
  add_path(words, "token-file", options.token_file);
  add_tls(words, options.tls);
  if (options.has_group()) add_group(words, options.etcd, options.group);
  return words;
}

void check(const DaemonOptions& options) {
  const JobLimits& limits = options.limits;
  boost::system::error_code no_address;
  boost::asio::ip::make_address(options.address, no_address);
  DDPRUN_ASSERT(!no_address);
  DDPRUN_ASSERT(1 <= limits.jobs && limits.jobs <= 1'000'000);
  DDPRUN_ASSERT(1 <= limits.nodes_per_job && limits.nodes_per_job <= rendezvous::kMaxNodes);
  DDPRUN_ASSERT(1 <= limits.nodes && limits.nodes <= 1'000'000);
  DDPRUN_ASSERT(0 <= limits.ended_jobs && limits.ended_jobs <= 1'000'000);
  DDPRUN_ASSERT(limits.forget_after.count() >= 0);
  // In nanoseconds it is added to a time.
  DDPRUN_ASSERT(limits.forget_after <= std::chrono::hours(24 * 365 * 100));
  DDPRUN_ASSERT(missing_tls_flag(options.tls).empty());
  const auto again = parse_daemon(written(options), read);
  DDPRUN_ASSERT(std::holds_alternative<DaemonOptions>(again));
  DDPRUN_ASSERT(std::get<DaemonOptions>(again) == options);
}

void read_daemon(const Words& words) {
  const auto parsed = parse_daemon(words, read);
  if (const auto* error = std::get_if<DaemonUsageError>(&parsed)) {
    DDPRUN_ASSERT(is_one_line(error->message) && error->message.ends_with("see ddprund --help"));
  } else if (const auto* answer = std::get_if<DaemonAnswer>(&parsed)) {
    DDPRUN_ASSERT(answer->text.ends_with('\n'));
  } else {
    check(std::get<DaemonOptions>(parsed));
  }
}

std::vector<int> ranks_of(const CtlOptions& options) {
  const auto* stacks = std::get_if<rendezvous::ShowStacks>(&options.question.verb);
  return stacks == nullptr ? std::vector<int>{} : stacks->ranks;
}

// A command that shows needs no endpoint: this host's jobs are asked.
bool is_local(const CtlOptions& options) {
  const auto& verb = options.question.verb;
  return options.endpoints.empty() && options.token_file.empty() && !options.tls.is_set() &&
         (std::holds_alternative<rendezvous::ShowJobs>(verb) ||
          std::holds_alternative<rendezvous::ShowStacks>(verb));
}

// `options` as words. The command's name is the first operand that was given.
Words written(const CtlOptions& options, const std::string& command) {
  Words words;
  if (!options.endpoints.empty()) words.push_back("--endpoint=" + written(options.endpoints));
  add_path(words, "token-file", options.token_file);
  add_tls(words, options.tls);
  if (options.json) words.emplace_back("--json");
  const auto& verb = options.question.verb;
  const auto* drain = std::get_if<rendezvous::DrainNode>(&verb);
  if (drain != nullptr && drain->deadline.count() > 0)
    words.push_back("--deadline=" + seconds(drain->deadline));
  words.insert(words.end(), {"--", command});
  if (!options.question.job.empty()) words.push_back(options.question.job);
  if (drain != nullptr) words.push_back(drain->node);
  if (const auto* forgive = std::get_if<rendezvous::ForgiveNode>(&verb))
    words.push_back(forgive->node);
  if (const auto* resize = std::get_if<rendezvous::ResizeJob>(&verb))
    words.push_back(fmt::format("{}:{}", resize->min_nodes, resize->max_nodes));
  for (const int rank : ranks_of(options)) words.push_back(std::to_string(rank));
  return words;
}

const char* name_of(CtlCommand command) {
  switch (command) {
    case CtlCommand::kJobs:
      return "jobs";
    case CtlCommand::kStatus:
      return "status";
    case CtlCommand::kNodes:
      return "nodes";
    case CtlCommand::kDrain:
      return "drain";
    case CtlCommand::kForgive:
      return "forgive";
    case CtlCommand::kResize:
      return "resize";
    case CtlCommand::kStop:
      return "stop";
    case CtlCommand::kWait:
      return "wait";
    case CtlCommand::kStacks:
      return "stacks";
    case CtlCommand::kTop:
      return "top";
    case CtlCommand::kCheckpoint:
      return "checkpoint";
  }
  return "";
}

bool is_same(const CtlOptions& one, const CtlOptions& other) {
  const auto* drain = std::get_if<rendezvous::DrainNode>(&one.question.verb);
  const auto* again = std::get_if<rendezvous::DrainNode>(&other.question.verb);
  if ((drain == nullptr) != (again == nullptr)) return false;
  if (drain != nullptr && (drain->node != again->node || drain->deadline != again->deadline))
    return false;
  return one.command == other.command && one.endpoints == other.endpoints &&
         one.token_file == other.token_file && one.tls == other.tls && one.json == other.json &&
         one.question.job == other.question.job && ranks_of(one) == ranks_of(other);
}

void read_ctl(const Words& words) {
  const EnvLookup env = [](std::string_view name) -> std::optional<std::string> {
    if (name != "DDPRUN_ENDPOINT" || file_text.empty()) return std::nullopt;
    return file_text.substr(0, file_text.find('\n'));
  };
  const auto parsed = parse_ctl(words, env);
  if (const auto* error = std::get_if<CtlUsageError>(&parsed)) {
    DDPRUN_ASSERT(is_one_line(error->message));
    return;
  }
  if (const auto* answer = std::get_if<CtlAnswer>(&parsed)) {
    DDPRUN_ASSERT(answer->text.ends_with('\n'));
    return;
  }
  const auto& options = std::get<CtlOptions>(parsed);
  DDPRUN_ASSERT(!options.endpoints.empty() || is_local(options));
  DDPRUN_ASSERT(missing_tls_flag(options.tls).empty());
  const auto again = parse_ctl(written(options, name_of(options.command)), env);
  DDPRUN_ASSERT(std::holds_alternative<CtlOptions>(again));
  DDPRUN_ASSERT(is_same(std::get<CtlOptions>(again), options));
}

}  // namespace
}  // namespace ddprun::daemon

// The first byte says whose command line it is.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::daemon;
  ddprun::fuzz::ScriptInput script(data, size);
  const bool is_daemon = script.choice(2) == 0;
  const auto words = split(script.all());
  if (is_daemon) {
    read_daemon(words);
  } else {
    read_ctl(words);
  }
  return 0;
}
