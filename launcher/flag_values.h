// The words of single flag values: node counts, streams per rank, endpoints, --rdzv-conf. Each
// function turns one text into one value or says what would have been accepted. Pure. It does not
// know flags, files, or which machine this is. Rules are torchrun 2.11's (torch/distributed/run.py
// and torch/distributed/elastic/), except where a comment says why not.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "proto/result.h"

namespace ddprun::launcher {

// Workers on one node. More is a slip of the keyboard: each costs a process and up to two pipes of
// the agent.
inline constexpr int kMaxWorkersPerNode = 4096;
// Nodes of one job: what a rendezvous holds (rendezvous/membership.h; plan.cc checks that the two
// agree).
inline constexpr int kMaxNodes = 1024;
// Where a c10d rendezvous listens when the endpoint names no port (torchrun's choice).
inline constexpr std::uint16_t kDefaultRendezvousPort = 29400;
// Where a static rendezvous of several nodes listens when --master-port is not given (torchrun's
// choice).
inline constexpr std::uint16_t kDefaultMasterPort = 29500;

inline constexpr int kMaxPort = 65535;

// Seconds beyond which a number is a slip: some thirty years.
inline constexpr double kMaxSeconds = 1e9;

// --nnodes: how many nodes a round needs at least and holds at most.
struct NodeCount {
  int min = 1;
  int max = 1;

  bool operator==(const NodeCount&) const = default;
};

// What to do with a worker's streams, as torchrun's one digit says it.
enum class Streams { kNone = 0, kOut = 1, kErr = 2, kBoth = 3 };

constexpr bool has_out(Streams streams) {
  return streams == Streams::kOut || streams == Streams::kBoth;
}
constexpr bool has_err(Streams streams) {
  return streams == Streams::kErr || streams == Streams::kBoth;
}

// --redirects and --tee: one answer for all local ranks, or one for each rank named.
struct StdSpec {
  Streams others = Streams::kNone;   // ranks that are not named
  std::map<int, Streams> by_rank{};  // ranks that are

  Streams of(int local_rank) const;
  bool none() const;  // true where no rank asks for anything
  bool operator==(const StdSpec&) const = default;
};

// A host, and a port where one was written. `host` has no brackets.
struct Endpoint {
  std::string host;
  std::optional<std::uint16_t> port{};

  bool operator==(const Endpoint&) const = default;
};

// --rdzv-conf with torchrun's defaults. Times of zero or less never get here. Keys that torchrun's
// own state machine needs (heartbeat_timeout and its like) are checked and not kept: nothing here
// waits for a heartbeat.
struct RendezvousConf {
  std::optional<bool> is_host{};  // c10d: host the rendezvous here, or never; unset: find out
  std::chrono::seconds join_timeout{600};   // c10d: the whole rendezvous
  std::chrono::seconds last_call{30};       // c10d: extra wait once the minimum is there
  std::chrono::seconds read_timeout{60};    // c10d: reaching the endpoint
  std::chrono::seconds timeout{900};        // static: the whole rendezvous
  std::vector<std::string> known_keys{};    // as given
  std::vector<std::string> unknown_keys{};  // for a warning: torchrun lets typing errors pass

  bool operator==(const RendezvousConf&) const = default;
};

// --restart-backoff.
struct Backoff {
  std::chrono::milliseconds base{0};
  std::chrono::milliseconds max{0};

  bool operator==(const Backoff&) const = default;
};

// Errors of all functions below: kInvalidArgument with what would be accepted ("expected …"), or
// kRejected with what is not built yet ("… not built yet"). The caller puts flag and value in
// front.

// A whole decimal number with optional sign and nothing else around it. Nothing where it is no such
// number or passes int.
std::optional<int> parse_int(std::string_view text);
// A finite decimal number (`0.1`, `1e-2`) and nothing else around it.
std::optional<double> parse_number(std::string_view text);

// `N` or `MIN:MAX`, 0 < MIN <= MAX <= kMaxNodes.
Result<NodeCount> parse_node_count(std::string_view text);
// `3` or `0:1,1:2`. Ranks above 9 can be named, unlike with torchrun.
Result<StdSpec> parse_std_spec(std::string_view text);
// `host`, `host:port`, `[v6]`, `[v6]:port`. A bare v6 address is refused: where its port starts
// cannot be told.
Result<Endpoint> parse_endpoint(std::string_view text);
// `0,2`; empty text names no rank. A number that is no rank of this node is allowed, as in
// torchrun.
Result<std::set<int>> parse_ranks(std::string_view text);
// `a,b`; `,,` is a comma inside a text. Empty text is one empty entry, which matches every line.
std::vector<std::string> parse_texts(std::string_view text);
// Seconds, with decimals, from 0 to kMaxSeconds.
Result<std::chrono::milliseconds> parse_seconds(std::string_view text);
// `BASE` or `BASE:MAX` in seconds, BASE <= MAX; MAX is a minute, or BASE where that is longer.
Result<Backoff> parse_backoff(std::string_view text);
// `key=value,key=value`; empty text gives the defaults.
Result<RendezvousConf> parse_rendezvous_conf(std::string_view text);

}  // namespace ddprun::launcher
