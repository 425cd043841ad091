// The words of single flag values: node counts, streams per rank, endpoints, --rdzv-conf. Each
// function turns one text into one value, or says what it would have accepted. The rules are those
// of torchrun 2.11 (torch/distributed/run.py and torch/distributed/elastic/), except where a
// comment says why not. It knows no flags, no files and not this machine. Pure. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/config.h"
#include "base/result.h"

namespace ddprun::launcher {

// Workers on one node. A larger number is a typing error: each worker costs a process and up to two
// pipes of the agent.
inline constexpr int kMaxWorkersPerNode = 4096;
// Nodes of one job: as many as a rendezvous holds (rendezvous/core/rendezvous.h). plan.cc checks
// that the two numbers agree.
inline constexpr int kMaxNodes = 16384;
// The port of a c10d rendezvous whose endpoint names none. torchrun's choice.
inline constexpr std::uint16_t kDefaultRendezvousPort = 29400;
// The port of a static rendezvous of several nodes without --master-port. torchrun's choice.
inline constexpr std::uint16_t kDefaultMasterPort = 29500;

// The port of a member of etcd whose endpoint names none.
inline constexpr std::uint16_t kDefaultEtcdPort = 2379;
// Members of etcd: more is a typing error, and nobody runs more than seven.
inline constexpr std::size_t kMaxEtcdMembers = 16;

inline constexpr int kMaxPort = 65535;
// The most of keep_alive_interval and keep_alive_max_attempt. More is a typing error, and their
// product must not overflow.
inline constexpr int kMaxKeepAlive = 3600;

// More seconds than this (some thirty years) are a typing error. In --rdzv-conf they are taken as
// this many. The bound also keeps the conversion to milliseconds from overflowing.
inline constexpr double kMaxSeconds = 1e9;

// `text` without blanks at both ends: Python's int() and torchrun's strip() allow them there.
std::string_view trimmed(std::string_view text);

// --nnodes: a round needs at least `min` nodes and holds at most `max`.
struct NodeCount {
  int min = 1;
  int max = 1;

  bool operator==(const NodeCount&) const = default;
};

// A choice of a worker's streams; the numbers are torchrun's digits.
enum class Streams { kNone = 0, kOut = 1, kErr = 2, kBoth = 3 };

constexpr bool has_out(Streams streams) {
  return streams == Streams::kOut || streams == Streams::kBoth;
}
constexpr bool has_err(Streams streams) {
  return streams == Streams::kErr || streams == Streams::kBoth;
}

// --redirects and --tee: one answer for all local ranks, or one for each rank that is named.
struct StdSpec {
  Streams others = Streams::kNone;   // ranks that are not named
  std::map<int, Streams> by_rank{};  // ranks that are

  Streams of(int local_rank) const;
  bool none() const;  // true if no rank asks for anything
  bool operator==(const StdSpec&) const = default;
};

// A host name or address, and a port if one was written. `host` has no brackets.
struct Endpoint {
  std::string host;
  std::optional<std::uint16_t> port{};

  bool operator==(const Endpoint&) const = default;
};

// A key of --rdzv-conf whose value does not fit.
struct BadConfValue {
  std::string key;
  Error error{};

  bool operator==(const BadConfValue&) const = default;
};

// --rdzv-conf with torchrun's defaults. Times are above zero, but those of a resize
// may be 0. Some keys (heartbeat_timeout and
// its like) steer torchrun's own state machine. They are checked and not kept: nothing here waits
// for a heartbeat.
struct RendezvousConf {
  std::optional<bool> is_host{};  // c10d: whether the host is here; unset: find out
  // c10d: how rounds are formed. All but node_unit: the plan sets it from its own flag.
  rendezvous::RoundSettings settings{};
  std::chrono::seconds read_timeout{60};  // c10d: until the endpoint must be reached
  // c10d: how soon a silent node is taken for lost (rendezvous/core/keep_alive.h).
  std::chrono::seconds keep_alive_interval{12};
  int keep_alive_max_attempt = 3;
  // ddprun's own: a node whose connection breaks keeps its workers and comes back
  // (rendezvous/recovery). Off: it is lost, as in torchrun.
  bool resumes = true;
  std::chrono::seconds timeout{900};        // static: for all of it
  rendezvous::EtcdPlan etcd{};              // etcd: all but its members
  agent::TlsPlan tls{};                     // ddprun's own, for all backends
  std::vector<std::string> known_keys{};    // in the order given
  std::vector<std::string> unknown_keys{};  // to warn of: torchrun passes typing errors in silence
  std::vector<BadConfValue> bad_values{};   // an error only if the backend reads the key

  bool operator==(const RendezvousConf&) const = default;
};

// --restart-backoff: the first pause, and the longest one.
struct Backoff {
  std::chrono::milliseconds base{0};
  std::chrono::milliseconds max{0};

  bool operator==(const Backoff&) const = default;
};

// Errors of all functions below are one clause; the caller puts flag and value in front of
// it. kInvalidArgument says what would be accepted ("expected …"). kRejected says what is not
// built yet ("… not built yet").

// A whole decimal number with an optional sign and nothing around it. Nothing if `text` is no such
// number, or it does not fit an int.
std::optional<int> parse_int(std::string_view text);
// A finite decimal number (`0.1`, `1e-2`) with nothing around it.
std::optional<double> parse_number(std::string_view text);

// `N` or `MIN:MAX` with 0 < MIN <= MAX <= kMaxNodes.
Result<NodeCount> parse_node_count(std::string_view text);
// `3` or `0:1,1:2`. Ranks above 9 can be named, which torchrun does not allow.
Result<StdSpec> parse_std_spec(std::string_view text);
// `host`, `host:port`, `[v6]` or `[v6]:port`. A v6 address without brackets is refused: nobody can
// tell where its port begins.
Result<Endpoint> parse_endpoint(std::string_view text);
// `h1:2379,h2`: the members of etcd, each as above, with a port above 0.
Result<std::vector<Endpoint>> parse_endpoints(std::string_view text);
// `PORT`, `:PORT`, `ADDRESS:PORT` with a numeric address, IPv6 in brackets: --http. Port 0 is the
// kernel's choice.
Result<agent::HttpPlan> parse_http_plan(std::string_view text);
// `0,2`; an empty text names no rank. A rank that this node does not have is allowed, as in
// torchrun.
Result<std::set<int>> parse_ranks(std::string_view text);
// `a,b`; `,,` is a comma inside a text. An empty text is one empty entry, and that matches every
// line.
std::vector<std::string> parse_texts(std::string_view text);
// Seconds, with decimals, from 0 to kMaxSeconds.
Result<std::chrono::milliseconds> parse_seconds(std::string_view text);
// `BASE` or `BASE:MAX` in seconds with BASE <= MAX. Without MAX it is a minute, or BASE if BASE is
// longer.
Result<Backoff> parse_backoff(std::string_view text);
// `key=value,key=value`; empty text gives the defaults. A value that does not fit its key is kept
// in bad_values and leaves the default.
Result<RendezvousConf> parse_rendezvous_conf(std::string_view text);

}  // namespace ddprun::launcher
