#include "launcher/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "launcher/flag_table.h"
#include "launcher/given_flags.h"

namespace ddprun::launcher {
namespace {

// Seconds of grace or interval beyond which a number is a slip: some thirty years.
constexpr double kMaxSeconds = 1e9;
constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr int kMaxPort = 65535;

struct IntRule {
  int min = 0;
  int max = kMaxInt;
  std::string_view expected{};
};

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "127.0.0.1" || host == "::1";
}

// Fills Options from what was given, one group of flags a function. The first error stays, but one
// that argparse would have found (exit code 2) goes before those that torchrun meets later, so that
// the exit code is torchrun's.
class OptionsReader {
 public:
  OptionsReader(const GivenFlags& given, const EnvLookup& env, const HostFacts& host)
      : given_(given), env_(env), host_(host) {}

  Parsed read() {
    read_program();
    read_workers();
    read_nodes();
    read_rendezvous();
    read_output();
    read_environment();
    if (error_) return *error_;
    return options_;
  }

 private:
  void fail(int exit_code, std::string_view what, std::string_view why) {
    if (error_ && error_->exit_code >= exit_code) return;
    error_ = UsageError{exit_code, fmt::format("ddprun: {}: {}", what, why)};
  }

  void fail(FlagId id, int exit_code, std::string_view why) {
    fail(exit_code, given_.shown(id), why);
  }

  void warn(std::string text) { options_.warnings.push_back(std::move(text)); }

  void warn_without_effect(FlagId id, std::string_view why) {
    if (given_.has(id) && given_.differs(id)) {
      warn(fmt::format("{} has no effect {}", given_.shown(id), why));
    }
  }

  // Not a whole number: 2, as argparse's type check. Out of range: 1.
  int integer(FlagId id, const IntRule& rule) {
    const auto value = parse_int(given_.text(id));
    if (!value) {
      fail(id, 2, fmt::format("expected {}", rule.expected));
      return rule.min;
    }
    if (*value < rule.min || *value > rule.max)
      fail(id, 1, fmt::format("expected {}", rule.expected));
    return *value;
  }

  template <typename Value>
  Value value_of(FlagId id, Result<Value> (*parse_text)(std::string_view)) {
    auto parsed = parse_text(given_.text(id));
    if (parsed) return *std::move(parsed);
    fail(id, parsed.error().code() == ErrorCode::kRejected ? 2 : 1, parsed.error().message());
    return Value{};
  }

  void read_program() {
    if (!given_.has_script) {
      fail(2, "SCRIPT is missing",
           "usage: ddprun [options] SCRIPT [script arguments…]; ddprun --help lists the options");
    }
    options_.script = given_.script;
    options_.script_args = given_.script_args;
    const bool module = given_.is_on(FlagId::kModule);
    const bool program = given_.is_on(FlagId::kNoPython);
    if (given_.is_on(FlagId::kRunPath)) {
      // As in torchrun --run-path goes before --no-python; with a module it would run something
      // else than asked for.
      if (module) fail(FlagId::kRunPath, 1, "expected no --module beside it");
      options_.mode = Mode::kRunPath;
    } else if (program) {
      if (module) fail(FlagId::kNoPython, 1, "expected no --module beside it");
      options_.mode = Mode::kProgram;
    } else if (module) {
      options_.mode = Mode::kModule;
    }
    read_start_method();
  }

  // It has no effect here: workers are always fresh processes. argparse checks it on the command
  // line only.
  void read_start_method() {
    const std::string method = given_.text(FlagId::kStartMethod);
    constexpr std::array methods = {"spawn", "fork", "forkserver"};
    if (std::find(methods.begin(), methods.end(), method) != methods.end()) return;
    if (given_.flags.at(FlagId::kStartMethod).from_environment) {
      warn(fmt::format("{} has no effect", given_.shown(FlagId::kStartMethod)));
    } else {
      fail(FlagId::kStartMethod, 2, "expected spawn, fork or forkserver");
    }
  }

  void read_workers() {
    options_.workers_per_node = workers_per_node();
    options_.max_restarts = integer(FlagId::kMaxRestarts, {0, kMaxInt, "a whole number from 0"});
    options_.role = given_.text(FlagId::kRole);
    options_.shutdown_timeout = shutdown_timeout();
    const auto interval = parse_number(given_.text(FlagId::kMonitorInterval));
    if (!interval || *interval <= 0 || *interval > kMaxSeconds) {
      fail(FlagId::kMonitorInterval, interval ? 1 : 2, "expected seconds above 0");
      return;
    }
    options_.monitor_interval =
        std::chrono::milliseconds(static_cast<std::int64_t>(*interval * 1e3));
  }

  int workers_per_node() {
    const std::string text = given_.text(FlagId::kNprocPerNode);
    if (text == "cpu") return std::clamp(host_.cpu_count(), 1, kMaxWorkersPerNode);
    if (text == "gpu" || text == "auto") {
      const int gpus = host_.gpu_count();
      if (gpus > 0) return gpus;
      if (text == "auto") return std::clamp(host_.cpu_count(), 1, kMaxWorkersPerNode);
      fail(FlagId::kNprocPerNode, 1, "no GPU is visible on this node");
      return 1;
    }
    const auto count = parse_int(text);
    if (!count || *count <= 0) {
      fail(FlagId::kNprocPerNode, 1, "expected a number above 0, cpu, gpu or auto");
      return 1;
    }
    if (*count > kMaxWorkersPerNode) {
      fail(FlagId::kNprocPerNode, 1,
           fmt::format("expected at most {} workers", kMaxWorkersPerNode));
    }
    return *count;
  }

  // --shutdown-timeout, else the variable that torchrun 2.15 reads, else 30 s.
  std::chrono::seconds shutdown_timeout() {
    constexpr std::string_view variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
    constexpr std::string_view expected = "expected whole seconds from 0";
    if (const auto text = env_(variable); text && !given_.has(FlagId::kShutdownTimeout)) {
      const auto seconds = parse_int(*text);
      if (!seconds || *seconds < 0) fail(1, fmt::format("{}={}", variable, *text), expected);
      return std::chrono::seconds(seconds.value_or(0));
    }
    return std::chrono::seconds(
        integer(FlagId::kShutdownTimeout, {0, kMaxInt, "whole seconds from 0"}));
  }

  void read_nodes() {
    options_.nodes = value_of(FlagId::kNnodes, parse_node_count);
    if (options_.nodes.min != options_.nodes.max) {
      fail(FlagId::kNnodes, 2, "elastic node counts are not built yet");
    }
    options_.node_rank = integer(FlagId::kNodeRank, {0, kMaxInt, "a whole number from 0"});
    options_.run_id = given_.text(FlagId::kRdzvId);
    options_.rendezvous_conf = value_of(FlagId::kRdzvConf, parse_rendezvous_conf);
    for (const std::string& key : options_.rendezvous_conf.unknown_keys) {
      warn(fmt::format("{}: the key {} is not known and has no effect",
                       given_.shown(FlagId::kRdzvConf), key));
    }
    const std::string local_addr = given_.text(FlagId::kLocalAddr);
    if (!local_addr.empty()) options_.local_addr = local_addr;
  }

  // The three ways to meet. torchrun 2.15's rule for one node is kept, with its static backend's
  // ports for several.
  void read_rendezvous() {
    const std::string backend = given_.text(FlagId::kRdzvBackend);
    if (given_.is_on(FlagId::kStandalone)) {
      read_standalone();
    } else if (backend == "static") {
      read_static();
    } else if (backend == "c10d") {
      read_c10d();
    } else if (backend == "etcd" || backend == "etcd-v2") {
      fail(FlagId::kRdzvBackend, 2, "not built yet; expected static or c10d");
    } else {
      fail(FlagId::kRdzvBackend, 1, "expected static or c10d");
    }
    read_run_id();
  }

  bool one_node() const { return options_.nodes.max == 1; }

  // As in torchrun backend, endpoint and id are replaced. A second node could never find this one,
  // so it is refused.
  void read_standalone() {
    options_.standalone = true;
    options_.run_id = host_.make_run_id();
    if (!one_node()) fail(FlagId::kNnodes, 1, "expected 1 node with --standalone");
    warn_without_effect(FlagId::kMasterPort, "with --standalone");
    warn_without_effect(FlagId::kNodeRank, "with --standalone");
  }

  void read_static() {
    check_node_rank();
    if (!given_.text(FlagId::kRdzvEndpoint).empty()) {
      options_.endpoint = value_of(FlagId::kRdzvEndpoint, parse_endpoint);
      if (!options_.endpoint.port) {
        fail(FlagId::kRdzvEndpoint, 1, "expected HOST:PORT with --rdzv-backend=static");
      }
    } else {
      options_.endpoint = {given_.text(FlagId::kMasterAddr), master_port()};
    }
    settle(Rendezvous::kStatic, given_.text(FlagId::kRdzvEndpoint).empty() ? FlagId::kMasterPort
                                                                           : FlagId::kRdzvEndpoint);
  }

  void check_node_rank() {
    if (options_.node_rank < options_.nodes.max) return;
    fail(FlagId::kNodeRank, 1,
         fmt::format("expected a rank below the number of nodes, {}", options_.nodes.max));
  }

  // Not given on one node: 0, any free port. A fixed one would collide with the next job of this
  // host.
  std::uint16_t master_port() {
    if (!given_.has(FlagId::kMasterPort)) {
      if (one_node() && !is_loopback(given_.text(FlagId::kMasterAddr))) {
        warn_without_effect(FlagId::kMasterAddr, "on one node without --master-port");
      }
      return one_node() ? 0 : kDefaultMasterPort;
    }
    return static_cast<std::uint16_t>(
        integer(FlagId::kMasterPort, {0, kMaxPort, "a port from 0 to 65535"}));
  }

  void read_c10d() {
    if (given_.text(FlagId::kRdzvEndpoint).empty()) {
      options_.endpoint = {"localhost", kDefaultRendezvousPort};
      warn("--rdzv-backend=c10d without --rdzv-endpoint: taking localhost:29400");
    } else {
      options_.endpoint = value_of(FlagId::kRdzvEndpoint, parse_endpoint);
      if (!options_.endpoint.port) options_.endpoint.port = kDefaultRendezvousPort;
    }
    for (const FlagId id : {FlagId::kNodeRank, FlagId::kMasterAddr, FlagId::kMasterPort}) {
      warn_without_effect(id, "with --rdzv-backend=c10d");
    }
    settle(Rendezvous::kC10d, FlagId::kRdzvEndpoint);
  }

  // Port 0, any free port, can be told to nobody else: fine on one node, which then needs no
  // rendezvous at all.
  void settle(Rendezvous wanted, FlagId port_flag) {
    options_.rendezvous = wanted;
    if (options_.endpoint.port.value_or(1) != 0) return;
    if (!one_node()) fail(port_flag, 1, "expected a port above 0 for several nodes");
    options_.rendezvous = Rendezvous::kLocal;
    options_.endpoint = {};
  }

  void read_run_id() {
    if (options_.run_id.empty() && one_node()) {
      options_.run_id = host_.make_run_id();
    } else if (options_.run_id.empty()) {
      fail(FlagId::kRdzvId, 1, "expected an id, the same on all nodes");
    }
    const bool has_log_folder = given_.text(FlagId::kLogDir) != "/dev/null";
    if (has_log_folder && options_.run_id.find('/') != std::string::npos) {
      fail(FlagId::kRdzvId, 1, "expected no slash, as the log folder bears this name");
    }
  }

  void read_output() {
    options_.redirects = value_of(FlagId::kRedirects, parse_std_spec);
    options_.tees = value_of(FlagId::kTee, parse_std_spec);
    const std::string log_dir = given_.text(FlagId::kLogDir);
    if (!log_dir.empty()) options_.log_dir = log_dir;
  }

  // Variables of torchrun that no flag stands for.
  void read_environment() {
    read_log_level();
    if (const auto text = env_("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
        text && *text != flag_of(FlagId::kLogLinePrefixTemplate).standard) {
      fail(2, fmt::format("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE={}", *text),
           "--log-line-prefix-template is not built yet");
    }
    for (const auto* name : {"TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_HEALTH_CHECK_PORT",
                             "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}) {
      const auto text = env_(name);
      if (text && !text->empty() && *text != "0") {
        warn(fmt::format("{}={} has no effect: not built yet", name, *text));
      }
    }
  }

  // Python's level names. NOTSET shows everything; CRITICAL and FATAL have no line of ours above an
  // error.
  void read_log_level() {
    const auto text = env_("LOGLEVEL");
    if (!text) return;
    using log::Level;
    struct Word {
      std::string_view name;
      Level level;
    };
    constexpr std::array words = {Word{"NOTSET", Level::kDebug}, Word{"DEBUG", Level::kDebug},
                                  Word{"INFO", Level::kInfo},    Word{"WARNING", Level::kWarning},
                                  Word{"WARN", Level::kWarning}, Word{"ERROR", Level::kError},
                                  Word{"FATAL", Level::kError},  Word{"CRITICAL", Level::kError}};
    const auto* word = std::find_if(words.begin(), words.end(),
                                    [&text](const Word& known) { return known.name == *text; });
    if (word == words.end()) {
      fail(1, fmt::format("LOGLEVEL={}", *text),
           "expected DEBUG, INFO, WARNING, ERROR or CRITICAL");
      return;
    }
    options_.log_level = word->level;
  }

  const GivenFlags& given_;
  const EnvLookup& env_;
  const HostFacts& host_;
  Options options_;
  std::optional<UsageError> error_;
};

}  // namespace

Parsed parse(const std::vector<std::string>& args, const EnvLookup& env, const HostFacts& host) {
  const auto flags = read_flags(args, env);
  if (const auto* error = std::get_if<UsageError>(&flags)) return *error;
  const auto& given = std::get<GivenFlags>(flags);
  if (given.has(FlagId::kHelp)) return Answer{help_text()};
  if (given.has(FlagId::kVersion)) return Answer{"ddprun " DDPRUN_VERSION "\n"};
  return OptionsReader(given, env, host).read();
}

}  // namespace ddprun::launcher
