// How nodes meet: --nnodes, --standalone, --rdzv-*, --node-rank, --master-*, --local-addr.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/net/address.h"
#include "launcher/options/parse_context.h"
#include "launcher/scheduler/placement.h"
#include "launcher/scheduler/scheduler_table.h"
#include "launcher/scheduler/start_mark.h"

namespace ddprun::launcher {
namespace {

// torchrun has two backends; what they were meant for is one here.
bool is_etcd(const std::string& backend) { return backend == "etcd" || backend == "etcd-v2"; }

bool one_node(const ParseContext& context) { return context.options.nodes.max == 1; }

// Takes `wanted`, except for port 0 (any free port). Nobody else can be told such a port. That is
// fine on one node, and one node needs no rendezvous at all. For several nodes it is an error.
void settle(ParseContext& context, Rendezvous wanted, FlagId port_flag) {
  Options& options = context.options;
  options.rendezvous = wanted;
  if (options.endpoint.port.value_or(1) != 0) return;
  if (!one_node(context)) context.fail(port_flag, 1, "expected a port above 0 for several nodes");
  options.rendezvous = Rendezvous::kLocal;
  options.endpoint = {};
}

// Replaces backend, endpoint and id, as torchrun does. A second node could never find this one, so
// it is refused.
void read_standalone(ParseContext& context) {
  context.options.standalone = true;
  context.options.run_id = context.host.make_run_id();
  if (!one_node(context)) context.fail(FlagId::kNnodes, 1, "expected 1 node with --standalone");
  context.warn_without_effect(FlagId::kMasterPort, "with --standalone");
  context.warn_without_effect(FlagId::kNodeRank, "with --standalone");
}

// torchrun's rule, and each node then waits for the others where only itself is.
void warn_of_loopback(ParseContext& context) {
  if (one_node(context) || context.given.has(FlagId::kMasterAddr)) return;
  context.warn(
      fmt::format("{} without --rdzv-endpoint: each node looks for the others at its own {}:{}: "
                  "type --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT on all nodes, with one of "
                  "them as HOST",
                  context.given.shown(FlagId::kNnodes), context.given.text(FlagId::kMasterAddr),
                  kDefaultMasterPort));
}

// If it is not given, it is 0 on one node: any free port. A fixed port would collide with the next
// job of this machine.
std::uint16_t master_port(ParseContext& context) {
  const ParsedArguments& given = context.given;
  if (!given.has(FlagId::kMasterPort)) {
    warn_of_loopback(context);
    if (!one_node(context)) return kDefaultMasterPort;
    if (!names_this_host(given.text(FlagId::kMasterAddr)))
      context.warn_without_effect(FlagId::kMasterAddr, "on one node without --master-port");
    return 0;
  }
  return static_cast<std::uint16_t>(
      context.integer(FlagId::kMasterPort, {0, kMaxPort, "a port from 0 to 65535"}));
}

// --rdzv-endpoint goes before --master-addr and --master-port, as in torchrun
// (get_rdzv_endpoint()).
void read_static(ParseContext& context) {
  Options& options = context.options;
  if (options.node_rank >= options.nodes.max) {
    context.fail(FlagId::kNodeRank, 1,
                 fmt::format("expected a rank below the number of nodes, {}", options.nodes.max));
  }
  const bool by_endpoint = !context.given.text(FlagId::kRdzvEndpoint).empty();
  if (by_endpoint) {
    options.endpoint = context.value_of(FlagId::kRdzvEndpoint, parse_endpoint);
    if (!options.endpoint.port)
      context.fail(FlagId::kRdzvEndpoint, 1, "expected HOST:PORT with --rdzv-backend=static");
  } else {
    options.endpoint = {context.given.text(FlagId::kMasterAddr), master_port(context)};
  }
  settle(context, Rendezvous::kStatic, by_endpoint ? FlagId::kRdzvEndpoint : FlagId::kMasterPort);
}

// Reads the flags for a rendezvous that finds out who serves the store and which rank a node has.
void read_what_is_found_out(ParseContext& context, std::string_view with) {
  for (const FlagId id : {FlagId::kMasterAddr, FlagId::kMasterPort})
    context.warn_without_effect(id, with);
  // Schedulers number their nodes: the rank is met where it is free.
  if (!context.given.has(FlagId::kNodeRank)) context.options.node_rank = -1;
}

// Without an endpoint the rendezvous is here, as in torchrun. A warning tells it, since a second
// node cannot find it.
void read_c10d(ParseContext& context) {
  Endpoint& endpoint = context.options.endpoint;
  if (context.given.text(FlagId::kRdzvEndpoint).empty()) {
    endpoint = {"localhost", kDefaultRendezvousPort};
    context.warn("--rdzv-backend=c10d without --rdzv-endpoint: taking localhost:29400");
  } else {
    endpoint = context.value_of(FlagId::kRdzvEndpoint, parse_endpoint);
    if (!endpoint.port) endpoint.port = kDefaultRendezvousPort;
  }
  read_what_is_found_out(context, "with --rdzv-backend=c10d");
  settle(context, Rendezvous::kC10d, FlagId::kRdzvEndpoint);
}

// The endpoint is etcd's: all of its members, of which some may be down.
void read_etcd(ParseContext& context) {
  const std::string backend = context.given.text(FlagId::kRdzvBackend);
  rendezvous::EtcdPlan& etcd = context.options.rendezvous_conf.etcd;
  for (const Endpoint& one : context.value_of(FlagId::kRdzvEndpoint, parse_endpoints))
    etcd.members.push_back({one.host, one.port.value_or(kDefaultEtcdPort)});
  if (backend == "etcd-v2") context.warn("--rdzv-backend=etcd-v2: etcd's v3 API is spoken");
  const auto conf = context.given.flags.find(FlagId::kRdzvConf);
  if (!etcd.password.empty() && !conf->second.from_environment)
    context.warn(
        "--rdzv-conf=password=…: every user of this host can read a command line; put it into a "
        "file that only you may read: password_file=PATH");
  if (const auto wrong = rendezvous::validate(etcd))
    context.fail(FlagId::kRdzvConf, 1, wrong->message());
  read_what_is_found_out(context, "with --rdzv-backend=" + backend);
  context.options.rendezvous = Rendezvous::kEtcd;
}

// The four ways to meet. For one node torchrun 2.15's rule holds; for several, the ports of
// torchrun's static backend.
void read_backend(ParseContext& context) {
  const std::string backend = context.given.text(FlagId::kRdzvBackend);
  if (context.given.is_on(FlagId::kStandalone)) {
    read_standalone(context);
  } else if (backend == "static") {
    read_static(context);
  } else if (backend == "c10d") {
    read_c10d(context);
  } else if (is_etcd(backend)) {
    read_etcd(context);
  } else {
    context.fail(FlagId::kRdzvBackend, 1, "expected static, c10d or etcd");
  }
}

// The rendezvous whose keys of --rdzv-conf count.
enum class Keys { kStatic, kC10d, kEtcd };

Keys keys_of(const ParseContext& context) {
  const std::string backend = context.given.text(FlagId::kRdzvBackend);
  if (context.given.is_on(FlagId::kStandalone)) return Keys::kC10d;
  if (is_etcd(backend)) return Keys::kEtcd;
  return backend == "static" ? Keys::kStatic : Keys::kC10d;
}

std::string_view name_of(Keys keys) {
  if (keys == Keys::kEtcd) return "etcd";
  return keys == Keys::kStatic ? "static" : "c10d";
}

template <std::size_t kCount>
bool is_one_of(const std::array<std::string_view, kCount>& names, const std::string& key) {
  return std::find(names.begin(), names.end(), key) != names.end();
}

bool is_etcd_key(const std::string& key) {
  return key == rendezvous::kDaemonsKey || is_one_of(rendezvous::kEtcdKeys, key);
}

constexpr std::array kTlsKeys = {std::string_view("tls_ca"), std::string_view("tls_cert"),
                                 std::string_view("tls_key"), std::string_view("tls_mixed")};

// Returns whether a key of --rdzv-conf does anything with this backend. The other keys time a state
// machine that does not exist here. No heartbeat is written to a store, nothing must be closed, no
// write is lost. store_type changes nothing either, but it promises nothing that is not kept: the
// store is always `tcp`.
bool acts(const std::string& key, Keys keys) {
  if (is_one_of(kTlsKeys, key)) return true;
  if (keys == Keys::kStatic) return key == "timeout" || key == "resume";
  if (keys == Keys::kEtcd && is_etcd_key(key)) return true;
  if (keys == Keys::kC10d && (key == "is_host" || key == "store_type")) return true;
  constexpr std::array kBoth = {
      std::string_view("join_timeout"),           std::string_view("last_call_timeout"),
      std::string_view("read_timeout"),           std::string_view("resize_wait"),
      std::string_view("resize_interval"),        std::string_view("keep_alive_interval"),
      std::string_view("keep_alive_max_attempt"), std::string_view("resume")};
  return is_one_of(kBoth, key);
}

// Returns whether torchrun's backend looks at the key. It refuses a value that does not fit only
// then.
bool reads(const std::string& key, Keys keys) {
  if (is_one_of(kTlsKeys, key)) return true;
  if (is_etcd_key(key)) return keys == Keys::kEtcd;
  return (key == "timeout") == (keys == Keys::kStatic);
}

// A bad value is an error where torchrun's backend would meet it; the first one is told. Others are
// a warning: YAML files and scripts give one list of keys to all backends.
void check_values(ParseContext& context, const RendezvousConf& conf, Keys keys) {
  for (const auto& [key, error] : conf.bad_values) {
    if (reads(key, keys)) {
      const bool not_built = error.code() == ErrorCode::kRejected;
      return context.fail(FlagId::kRdzvConf, not_built ? 2 : 1, error.message());
    }
    context.warn(fmt::format("{}: {}; the {} backend does not read it",
                             context.given.shown(FlagId::kRdzvConf), error.message(),
                             name_of(keys)));
  }
}

void check_tls(ParseContext& context, const agent::TlsPlan& tls) {
  const int given = !tls.ca_file.empty() + !tls.cert_file.empty() + !tls.key_file.empty();
  if (given != 0 && given != 3)
    context.fail(FlagId::kRdzvConf, 1, "expected all or none of tls_ca, tls_cert and tls_key");
  if (given == 0 && tls.is_mixed)
    context.fail(FlagId::kRdzvConf, 1, "expected tls_ca, tls_cert and tls_key with tls_mixed");
}

// Keys without effect are a warning and no error: command lines are made for torchrun.
void read_conf(ParseContext& context) {
  const Keys keys = keys_of(context);
  RendezvousConf& conf = context.options.rendezvous_conf;
  conf = context.value_of(FlagId::kRdzvConf, parse_rendezvous_conf);
  check_values(context, conf, keys);
  check_tls(context, conf.tls);
  std::vector<std::string> idle = conf.known_keys;
  std::erase_if(idle, [keys](const std::string& key) { return acts(key, keys); });
  if (!idle.empty()) {
    context.warn(fmt::format("--rdzv-conf: without effect with the {} backend: {}", name_of(keys),
                             fmt::join(idle, ", ")));
  }
  for (const std::string& key : conf.unknown_keys) {
    context.warn(fmt::format("{}: the key {} is not known and has no effect",
                             context.given.shown(FlagId::kRdzvConf), key));
  }
}

// --nnodes becomes the multiples of the unit that it holds. Elastic sizes need a rendezvous that
// gives out the ranks.
void read_node_unit(ParseContext& context) {
  Options& options = context.options;
  NodeCount& nodes = options.nodes;
  // A value that was refused must not be divided by.
  options.node_unit =
      std::max(1, context.integer(FlagId::kNodeUnit, {1, kMaxNodes, "a whole number above 0"}));
  nodes.max -= nodes.max % options.node_unit;
  nodes.min += (options.node_unit - nodes.min % options.node_unit) % options.node_unit;
  if (nodes.min > nodes.max)
    context.fail(FlagId::kNodeUnit, 1,
                 fmt::format("expected a number of which --nnodes={} holds a multiple",
                             context.given.text(FlagId::kNnodes)));
  const bool is_static = !context.given.is_on(FlagId::kStandalone) &&
                         context.given.text(FlagId::kRdzvBackend) == "static";
  if (is_static && nodes.min != nodes.max)
    context.fail(FlagId::kNnodes, 1,
                 "expected one number with --rdzv-backend=static; MIN:MAX needs "
                 "--rdzv-backend=c10d");
}

// An empty id is a new one on each node. That is fine for one node; several would never meet.
void read_run_id(ParseContext& context) {
  std::string& run_id = context.options.run_id;
  if (run_id.empty() && one_node(context)) {
    run_id = context.host.make_run_id();
  } else if (run_id.empty()) {
    context.fail(FlagId::kRdzvId, 1, "expected an id, the same on all nodes");
  }
  const bool has_log_folder = context.given.text(FlagId::kLogDir) != "/dev/null";
  if (has_log_folder && run_id.find('/') != std::string::npos)
    context.fail(FlagId::kRdzvId, 1, "expected no slash, as the log folder bears this name");
}

// As if it had been typed.
void give(ParseContext& context, FlagId id, const std::string& text) {
  context.given.flags[id] = {text, fmt::format("--{}={}", flag_of(id).name, text), false};
}

constexpr std::array kRendezvousFlags = {
    FlagId::kStandalone, FlagId::kRdzvBackend, FlagId::kRdzvId,    FlagId::kRdzvEndpoint,
    FlagId::kNodeRank,   FlagId::kMasterAddr,  FlagId::kMasterPort};

// Returns whether a flag says anything of nodes: templates set PET_ variables that are empty, or
// switched off.
bool is_said(const ParseContext& context, FlagId id) {
  if (!context.given.has(id)) return false;
  const std::string text = context.given.text(id);
  if (id == FlagId::kStandalone) return text == "1";
  return !text.empty() || !context.given.flags.at(id).from_environment;
}

// Collects the values of flags and PET_ variables that are about nodes. --rdzv-conf and
// --local-addr do not count: they hold wherever nodes meet.
PlacementQuery asked_nodes(const ParseContext& context) {
  PlacementQuery asked{.called = context.host.called};
  const auto* const first = std::find_if(kRendezvousFlags.begin(), kRendezvousFlags.end(),
                                         [&](FlagId id) { return is_said(context, id); });
  asked.by_flags = first != kRendezvousFlags.end();
  if (asked.by_flags) asked.flag_shown = context.given.shown(*first);
  const auto endpoint = parse_endpoint(context.given.text(FlagId::kRdzvEndpoint));
  asked.is_alone = context.given.is_on(FlagId::kStandalone) ||
                   (is_said(context, FlagId::kRdzvEndpoint) && endpoint &&
                    names_this_host(endpoint->host) && !is_said(context, FlagId::kNnodes));
  const auto nodes = parse_node_count(context.given.text(FlagId::kNnodes));
  if (!is_said(context, FlagId::kNnodes) || !nodes) return asked;
  asked.min_nodes = nodes->min;
  asked.max_nodes = nodes->max;
  asked.nodes_shown = context.given.shown(FlagId::kNnodes);
  return asked;
}

// A first pod, or a node of an allocation, may be one of several, and nothing tells it.
void tell_of_unknown_nodes(ParseContext& context) {
  const PlacementQuery asked = asked_nodes(context);
  if (asked.is_alone || asked.by_flags || asked.max_nodes > 0) return;
  const SchedulerFacts& found = context.scheduler_facts;
  if (found.scheduler == Scheduler::kIndexedJob)
    context.options.notices.emplace_back(
        "a job on this pod alone; type --nnodes=N with the Job's number of completions if its "
        "pods are one job, else --standalone");
  if (found.scheduler == Scheduler::kVolcano && found.first_host.empty())
    context.options.notices.emplace_back(
        "a job on this pod alone; write `plugins: {svc: []}` into the Volcano job if its pods are "
        "one job, else type --standalone");
  if (found.scheduler == Scheduler::kNone) return;
  const SchedulerRow& row = row_of(found.scheduler);
  if (row.kind == SchedulerKind::kAllocation && row.nodes.empty() && !row.hosts.empty() &&
      found.job_nodes == 0)
    context.options.notices.push_back(
        fmt::format("a job on this node alone; {}={} of this {} cannot be read: type {} if it has "
                    "more nodes, else --standalone",
                    row.hosts, context.env(row.hosts).value_or(""), row.name,
                    "--nnodes=N --rdzv-backend=c10d --rdzv-id=NAME --rdzv-endpoint=HOST"));
}

}  // namespace

void read_scheduler(ParseContext& context) {
  Options& options = context.options;
  context.scheduler_facts = detect_scheduler(context.env, context.host.scheduler_inputs);
  options.cpus_per_task = context.scheduler_facts.cpus_per_task;
  options.start_mark = start_mark(context.env);
  const auto placed = place(context.scheduler_facts, asked_nodes(context));
  if (!placed) {
    context.error = UsageError{2, placed.error().message()};
    return;
  }
  if (!*placed) {
    tell_of_unknown_nodes(context);
    return;
  }
  const Placement& placement = **placed;
  for (const FlagId id : kRendezvousFlags) context.given.flags.erase(id);
  const bool is_v6 = placement.host.find(':') != std::string::npos;
  give(context, FlagId::kRdzvBackend, "c10d");
  give(context, FlagId::kRdzvId, placement.id);
  give(context, FlagId::kRdzvEndpoint,
       fmt::format("{}:{}", is_v6 ? "[" + placement.host + "]" : placement.host,
                   placement.first_port));
  give(context, FlagId::kNodeRank, std::to_string(placement.node_rank));
  if (!is_said(context, FlagId::kNnodes))
    give(context, FlagId::kNnodes, std::to_string(placement.nodes));
  options.port_count = kJobPorts;
  context.is_first_node = placement.node_rank == 0;
  if (placement.node_rank == 0) options.notices.push_back(placement.notice);
}

void read_rendezvous(ParseContext& context) {
  Options& options = context.options;
  options.nodes = context.value_of(FlagId::kNnodes, parse_node_count);
  read_node_unit(context);
  options.node_rank = context.integer(FlagId::kNodeRank, {.expected = "a whole number from 0"});
  options.run_id = context.given.text(FlagId::kRdzvId);
  const std::string local_addr = context.given.text(FlagId::kLocalAddr);
  if (!local_addr.empty()) options.local_addr = local_addr;
  read_conf(context);
  std::optional<bool>& is_host = options.rendezvous_conf.is_host;
  if (!is_host) is_host = context.is_first_node;
  read_backend(context);
  read_run_id(context);
}

}  // namespace ddprun::launcher
