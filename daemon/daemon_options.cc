#include "daemon/daemon_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/address.hpp>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/hide_password.h"
#include "daemon/parsed_words.h"
#include "launcher/options/flag_values.h"

namespace ddprun::daemon {
namespace {

constexpr const char* kDaemonHelp = R"(usage: ddprund [OPTION]...

Serves the rendezvous of many jobs on one port. Nodes reach it with
  ddprun --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT --rdzv-id=JOB …
and operators with ddpctl. The first node of an id makes the job, with its own --nnodes and
timeouts.

  --listen=[ADDRESS:]PORT    where it listens (default: 29400 on all addresses); ADDRESS is
                             numeric, [v6] in brackets
  --token-file=PATH          a file with the token that nodes and operators must show
                             (default: $DDPRUN_TOKEN, else the file $DDPRUN_TOKEN_FILE; without any,
                             all nodes are let in, and operators on this host only)
  --tls-ca=PATH, --tls-cert=PATH, --tls-key=PATH
                             PEM files, all three: nodes and operators must show a certificate of
                             this authority
  --resume=on|off            nodes whose connection breaks keep their workers and may come back
                             (default: on)
  --http=[ADDRESS]:PORT      metrics and a status page; without an address for this host only
                             (default: none)
  --max-jobs=N               jobs at a time (default: 1000)
  --max-nodes-per-job=N      nodes of a job, spares too (default: 16384)
  --max-nodes=N              nodes of all jobs together (default: 17408)
  --max-memory=MIB           above it no new job is made (default: no limit)
  --forget-after=SECONDS     how long an ended job is shown (default: 3600)
  --max-ended-jobs=N         ended jobs that are kept at most (default: 1000)
  --etcd-endpoint=HOST[:PORT],…
                             members of etcd: one ddprund of a group leads, the others wait, and
                             the next one goes on with the jobs; nodes find it with
                             --rdzv-backend=etcd --rdzv-endpoint=HOST[:PORT],…
                             --rdzv-conf=daemons=GROUP
  --group=NAME               the group (default: default)
  --etcd-conf=KEY=VALUE,…    etcd_prefix, protocol, cacert, cert, key, username, password,
                             password_file, as in --rdzv-conf
  --config=PATH              a JSON object with the names above and _ for -: {"max_jobs": 50};
                             flags win
  -h, --help                 this text
  --version                  the version

exit codes: 0 told to end; 1 it could not serve; 2 usage error
)";

constexpr int kMaxCount = 1'000'000;
constexpr std::size_t kMaxConfigBytes = std::size_t{64} * 1024;

enum Setting {
  kSetListen = 256,
  kSetTokenFile,
  kSetTlsCa,
  kSetTlsCert,
  kSetTlsKey,
  kSetResume,
  kSetHttp,
  kSetMaxJobs,
  kSetMaxNodes,
  kSetMaxAllNodes,
  kSetMaxMemory,
  kSetForgetAfter,
  kSetEtcdEndpoint,
  kSetEtcdConf,
  kSetGroup,
  kSetMaxEnded
};
enum Other { kReadConfig = 300, kShowVersion };

constexpr std::array<option, 20> kDaemonFlags = {
    {{"listen", required_argument, nullptr, kSetListen},
     {"token-file", required_argument, nullptr, kSetTokenFile},
     {"tls-ca", required_argument, nullptr, kSetTlsCa},
     {"tls-cert", required_argument, nullptr, kSetTlsCert},
     {"tls-key", required_argument, nullptr, kSetTlsKey},
     {"resume", required_argument, nullptr, kSetResume},
     {"http", required_argument, nullptr, kSetHttp},
     {"max-jobs", required_argument, nullptr, kSetMaxJobs},
     {"max-nodes-per-job", required_argument, nullptr, kSetMaxNodes},
     {"max-nodes", required_argument, nullptr, kSetMaxAllNodes},
     {"max-memory", required_argument, nullptr, kSetMaxMemory},
     {"forget-after", required_argument, nullptr, kSetForgetAfter},
     {"max-ended-jobs", required_argument, nullptr, kSetMaxEnded},
     {"etcd-endpoint", required_argument, nullptr, kSetEtcdEndpoint},
     {"etcd-conf", required_argument, nullptr, kSetEtcdConf},
     {"group", required_argument, nullptr, kSetGroup},
     {"config", required_argument, nullptr, kReadConfig},
     {"help", no_argument, nullptr, 'h'},
     {"version", no_argument, nullptr, kShowVersion},
     {nullptr, 0, nullptr, 0}}};

DaemonUsageError refused(std::string message) {
  return {std::move(message) + "; see ddprund --help"};
}

Result<int> count(const std::string& text, int least, int most) {
  const auto number = launcher::parse_int(text);
  if (number && *number >= least && *number <= most) return *number;
  return Error(ErrorCode::kInvalidArgument, fmt::format("expected {} to {}", least, most));
}

Result<void> set_listen(DaemonOptions& options, const std::string& text) {
  const bool is_port = launcher::parse_int(text).has_value();
  const auto endpoint = launcher::parse_endpoint(is_port ? "[::]:" + text : text);
  boost::system::error_code no_address;
  if (endpoint) boost::asio::ip::make_address(endpoint->host, no_address);
  if (!endpoint || no_address || !endpoint->port)
    return Error(ErrorCode::kInvalidArgument,
                 "expected PORT or ADDRESS:PORT with a numeric address");
  options.address = endpoint->host;
  options.port = *endpoint->port;
  return {};
}

Result<void> set_etcd_members(DaemonOptions& options, const std::string& text) {
  const auto members = launcher::parse_endpoints(text);
  if (!members) return members.error();
  options.etcd.members.clear();
  for (const launcher::Endpoint& one : *members)
    options.etcd.members.push_back({one.host, one.port.value_or(launcher::kDefaultEtcdPort)});
  return {};
}

Result<void> set_etcd_conf(DaemonOptions& options, const std::string& text) {
  const auto conf = launcher::parse_rendezvous_conf(text);
  if (!conf) return conf.error();
  if (!conf->bad_values.empty()) return conf->bad_values.front().error;
  for (const auto* keys : {&conf->known_keys, &conf->unknown_keys})
    for (const std::string& key : *keys)
      if (std::ranges::find(rendezvous::kEtcdKeys, key) == rendezvous::kEtcdKeys.end())
        return Error(ErrorCode::kInvalidArgument,
                     fmt::format("expected keys of {}", fmt::join(rendezvous::kEtcdKeys, ", ")));
  const auto members = std::move(options.etcd.members);
  options.etcd = conf->etcd;
  options.etcd.members = members;
  if (const auto wrong = rendezvous::validate(options.etcd)) return *wrong;
  return {};
}

Result<void> set_group(DaemonOptions& options, const std::string& text) {
  if (const auto wrong = rendezvous::check_group_name(text)) return *wrong;
  options.group = text;
  return {};
}

Result<void> set_http(DaemonOptions& options, const std::string& text) {
  const auto plan = launcher::parse_http_plan(text);
  if (!plan) return plan.error();
  options.http = HttpAddress{plan->address, plan->port};
  return {};
}

// The same for a flag and for an entry of the file.
Result<void> set(DaemonOptions& options, int setting, const std::string& text) {
  JobLimits& limits = options.limits;
  const auto to = [](auto& field, const auto& value) -> Result<void> {
    if (!value) return value.error();
    field = static_cast<std::remove_reference_t<decltype(field)>>(*value);
    return {};
  };
  const auto keep = [&text](std::string& field) -> Result<void> {
    field = text;
    return {};
  };
  switch (setting) {
    case kSetListen:
      return set_listen(options, text);
    case kSetTokenFile:
      return keep(options.token_file);
    case kSetTlsCa:
      return keep(options.tls.ca);
    case kSetTlsCert:
      return keep(options.tls.cert);
    case kSetTlsKey:
      return keep(options.tls.key);
    case kSetResume:
      if (text != "on" && text != "off")
        return Error(ErrorCode::kInvalidArgument, "expected on or off");
      options.resumes = text == "on";
      return {};
    case kSetHttp:
      return set_http(options, text);
    case kSetMaxJobs:
      return to(limits.jobs, count(text, 1, kMaxCount));
    case kSetMaxNodes:
      return to(limits.nodes_per_job, count(text, 1, rendezvous::kMaxNodes));
    case kSetMaxAllNodes:
      return to(limits.nodes, count(text, 1, kMaxCount));
    case kSetMaxMemory: {
      auto set_to = to(limits.memory_bytes, count(text, 1, std::numeric_limits<int>::max()));
      if (set_to) limits.memory_bytes <<= 20;
      return set_to;
    }
    case kSetForgetAfter:
      return to(limits.forget_after, launcher::parse_seconds(text));
    case kSetEtcdEndpoint:
      return set_etcd_members(options, text);
    case kSetEtcdConf:
      return set_etcd_conf(options, text);
    case kSetGroup:
      return set_group(options, text);
    default:
      return to(limits.ended_jobs, count(text, 0, kMaxCount));
  }
}

std::string as_key(std::string_view flag) {
  std::string key(flag);
  for (char& letter : key) letter = letter == '-' ? '_' : letter;
  return key;
}

// JSON can hold what no word of a command line has.
std::string on_one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char byte) { return static_cast<unsigned char>(byte) < ' ' || byte == 0x7F; }, ' ');
  return text;
}

// Returns it as a message may have it: etcd's password is on nobody's terminal.
std::string shown(int setting, const std::string& text) {
  std::string line = on_one_line(text);
  return setting == kSetEtcdConf ? hide_passwords(std::move(line)) : line;
}

// Returns the setting of a key of the file; 0: there is none.
int setting_of(const std::string& key) {
  int setting = 0;
  for (const option& flag : kDaemonFlags) {
    if (flag.name != nullptr && flag.val <= kSetMaxEnded && flag.val >= kSetListen &&
        as_key(flag.name) == key)
      setting = flag.val;
  }
  return setting;
}

std::optional<DaemonUsageError> set_from_file(DaemonOptions& options, const std::string& path,
                                              ReadConfig read) {
  const auto text = read(path);
  if (!text) return refused(fmt::format("--config={}: {}", path, text.error().message()));
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object()) return refused(fmt::format("--config={}: expected a JSON object", path));
  for (const auto& [key, value] : json.items()) {
    const int setting = setting_of(key);
    if (setting == 0)
      return refused(fmt::format("--config={}: {}: no such setting", path, on_one_line(key)));
    // Lists and objects are no value of any, and may be nested as deep as they like.
    if (value.is_structured())
      return refused(fmt::format("--config={}: {}: expected a text or a number", path, key));
    const std::string word = value.is_string() ? value.get<std::string>() : value.dump();
    // No word of a command line holds one, and a path would end there.
    if (word.find('\0') != std::string::npos)
      return refused(fmt::format("--config={}: {}={}: expected a text without a zero byte", path,
                                 key, shown(setting, word)));
    if (const auto done = set(options, setting, word); !done)
      return refused(fmt::format("--config={}: {}={}: {}", path, key, shown(setting, word),
                                 done.error().message()));
  }
  return std::nullopt;
}

}  // namespace

std::string missing_tls_flag(const rendezvous::TlsFiles& files) {
  const int given = int{!files.ca.empty()} + int{!files.cert.empty()} + int{!files.key.empty()};
  return given == 0 || given == 3
             ? ""
             : "--tls-ca, --tls-cert and --tls-key: expected all three, or none";
}

Result<std::string> read_config(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error(ErrorCode::kNotFound, "expected a readable file");
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxConfigBytes)
    return Error(ErrorCode::kLimit, fmt::format("expected at most {} bytes", kMaxConfigBytes));
  return text;
}

namespace {

// The flags that are given; of two the last counts.
std::optional<DaemonUsageError> set_from_flags(DaemonOptions& options, const ParsedWords& given) {
  for (const auto& [flag, text] : given.flags) {
    if (flag == kReadConfig) continue;
    const auto named = std::ranges::find(kDaemonFlags, flag, &option::val);
    if (const auto done = set(options, flag, text); !done)
      return refused(
          fmt::format("--{}={}: {}", named->name, shown(flag, text), done.error().message()));
  }
  return std::nullopt;
}

// Settings that do not go together.
std::optional<DaemonUsageError> contradiction_in(const DaemonOptions& options) {
  if (auto missing = missing_tls_flag(options.tls); !missing.empty())
    return refused(std::move(missing));
  const DaemonOptions defaults;
  if (!options.has_group() && (options.etcd != defaults.etcd || options.group != defaults.group))
    return refused("--group and --etcd-conf: expected --etcd-endpoint with them");
  return std::nullopt;
}

}  // namespace

std::variant<DaemonOptions, DaemonAnswer, DaemonUsageError> parse_daemon(
    const std::vector<std::string>& words, ReadConfig read) {
  const auto given = sort_words(words, kDaemonFlags);
  if (!given) return refused(given.error().message());
  std::string config;
  for (const auto& [flag, text] : given->flags) {
    if (flag == 'h') return DaemonAnswer{kDaemonHelp};
    if (flag == kShowVersion) return DaemonAnswer{"ddprund " DDPRUN_VERSION "\n"};
    if (flag == kReadConfig) config = text;
  }
  if (!given->operands.empty())
    return refused(fmt::format("{}: expected no operands", given->operands.front()));
  DaemonOptions options;
  if (!config.empty()) {
    if (auto wrong = set_from_file(options, config, read)) return *std::move(wrong);
  }
  if (auto wrong = set_from_flags(options, *given)) return *std::move(wrong);
  if (auto wrong = contradiction_in(options)) return *std::move(wrong);
  return options;
}

}  // namespace ddprun::daemon
