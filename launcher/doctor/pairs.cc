#include "launcher/doctor/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>

namespace ddprun::launcher {
namespace {

using nlohmann::json;

// A broken switch breaks thousands of pairs: people need to see some.
constexpr std::size_t kMostPairs = 16;
constexpr int kMostPort = 65535;
constexpr double kSlowRoundTrip = 0.005;  // seconds; within a cluster it is 0.0002
constexpr double kClockDifference = 0.5;  // seconds

std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// A member that a peer wrote: nothing where it is no text. A member that is missing is empty.
std::optional<std::string> text_of(const json& object, const char* name) {
  const json value = object.value(name, json(""));
  return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
}

// Nothing where it is no whole number from 0 to `most`.
std::optional<int> number_of(const json& value, int most) {
  if (!value.is_number_unsigned() || most < 0) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(most)) return std::nullopt;
  return static_cast<int>(number);
}

// The pairs that reach each other, seen together.
struct Links {
  std::size_t good = 0;
  double shortest = 0;
  double longest = 0;
  std::string longest_name;
  double worst_clock = 0;
  std::string worst_clock_text;

  void add(const Peer& from, const Peer& to, const Pair& pair) {
    if (std::abs(pair.clock_difference) > std::abs(worst_clock)) {
      worst_clock = pair.clock_difference;
      worst_clock_text =
          fmt::format("{}'s clock is {:.3f} s {} {}'s", to.host_name, std::abs(worst_clock),
                      worst_clock > 0 ? "ahead of" : "behind", from.host_name);
    }
    if (good++ == 0) shortest = pair.round_trip;
    shortest = std::min(shortest, pair.round_trip);
    if (pair.round_trip < longest) return;
    longest = pair.round_trip;
    longest_name = fmt::format("{} to {}", from.host_name, to.host_name);
  }
};

Finding broken(const Peer& from, const Peer& to, const Pair& pair) {
  const std::string what = fmt::format("{} to {}", from.host_name, to.host_name);
  if (pair.reach == Reach::kSmallOnly)
    return {Level::kFailure, what,
            fmt::format("64 KiB do not come through to {}, small messages do", to.address),
            "large packets are lost on the way: `ip link set dev IFACE mtu 1400` on both, or let "
            "ICMP (fragmentation needed) through"};
  return {Level::kFailure, what,
          fmt::format("{} cannot reach {} at {}:{}: {}", from.host_name, to.host_name, to.address,
                      to.port, pair.error),
          "let the ports that the kernel gives out (sysctl net.ipv4.ip_local_port_range) through "
          "the firewall"};
}

void judge_links(const Links& links, Findings& found) {
  if (links.good == 0) return;
  const std::string fact =
      fmt::format("{:.2f} to {:.2f} ms, the longest from {}", links.shortest * 1e3,
                  links.longest * 1e3, links.longest_name);
  found.push_back(links.longest < kSlowRoundTrip
                      ? Finding{Level::kOk, "round trip", fact}
                      : Finding{Level::kWarning, "round trip", fact,
                                "`ping` between the two; are they in one network?"});
  const std::string& clocks = links.worst_clock_text;
  found.push_back(
      std::abs(links.worst_clock) < kClockDifference
          ? Finding{Level::kOk, "clocks", clocks.empty() ? "equal" : clocks}
          : Finding{Level::kWarning, "clocks", clocks,
                    "`chronyc makestep` on the wrong one; `chronyc tracking` says which"});
}

// `names` by what they have: `2.11.0 on node01, node02; 2.12.0 on node03`.
std::string groups_text(const std::map<std::string, std::vector<std::string>>& groups) {
  std::string text;
  for (const auto& [value, names] : groups) {
    const std::size_t shown = std::min<std::size_t>(names.size(), 4);
    text += fmt::format(
        "{}{} on {}{}", text.empty() ? "" : "; ", value,
        fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
        shown < names.size() ? ", …" : "");
  }
  return text;
}

// A thing that is to be equal on all nodes, and how bad it is if it is not.
struct EqualThing {
  std::string name;
  std::string Peer::*member;
  Level level;
  std::string remedy;
};

// A thing that no node has needs no line.
void judge_equal(const EqualThing& thing, const std::vector<Peer>& peers, Findings& found) {
  std::map<std::string, std::vector<std::string>> groups;
  for (const Peer& peer : peers) {
    const std::string& value = peer.*thing.member;
    groups[value.empty() ? "none" : value].push_back(peer.host_name);
  }
  if (groups.size() > 1) {
    found.push_back({thing.level, thing.name, groups_text(groups), thing.remedy});
  } else if (!(peers.front().*thing.member).empty()) {
    found.push_back({Level::kOk, thing.name, groups.begin()->first + " on all nodes"});
  }
}

}  // namespace

std::string write_peer(const Peer& peer) {
  return dump({{"host", peer.host_name},
               {"address", peer.address},
               {"port", peer.port},
               {"torch", peer.torch},
               {"driver", peer.driver}});
}

std::optional<Peer> read_peer(std::string_view text) {
  const json value = json::parse(text, nullptr, false);
  if (!value.is_object()) return std::nullopt;
  const auto host = text_of(value, "host");
  const auto address = text_of(value, "address");
  const auto port = number_of(value.value("port", json(0U)), kMostPort);
  const auto torch = text_of(value, "torch");
  const auto driver = text_of(value, "driver");
  if (!host || !address || !port || !torch || !driver) return std::nullopt;
  return Peer{*host, *address, *port, *torch, *driver};
}

std::string write_pairs(const std::vector<Pair>& pairs) {
  json all = json::array();
  for (const Pair& pair : pairs)
    all.push_back({pair.to, static_cast<int>(pair.reach), pair.error, pair.round_trip,
                   pair.clock_difference});
  return dump(all);
}

std::optional<std::vector<Pair>> read_pairs(std::string_view text, std::size_t nodes) {
  const json all = json::parse(text, nullptr, false);
  if (!all.is_array()) return std::nullopt;
  std::vector<Pair> pairs;
  for (const json& one : all) {
    if (!one.is_array() || one.size() != 5 || !one[2].is_string() || !one[3].is_number() ||
        !one[4].is_number())
      return std::nullopt;
    const auto to = number_of(one[0], static_cast<int>(nodes) - 1);
    const auto reach = number_of(one[1], static_cast<int>(Reach::kAll));
    if (!to || !reach) return std::nullopt;
    pairs.push_back({.to = *to,
                     .reach = static_cast<Reach>(*reach),
                     .error = one[2].get<std::string>(),
                     .round_trip = one[3].get<double>(),
                     .clock_difference = one[4].get<double>()});
  }
  return pairs;
}

Findings judge_pairs(const std::vector<Peer>& peers,
                     const std::vector<std::optional<std::vector<Pair>>>& tried) {
  Findings found;
  Links links;
  std::size_t bad = 0;
  for (std::size_t from = 0; from < peers.size(); ++from) {
    if (!tried[from]) {
      found.push_back({Level::kFailure, peers[from].host_name,
                       "did not say in time how it reaches the others", "see what it says itself"});
      continue;
    }
    for (const Pair& pair : *tried[from]) {
      const Peer& to = peers.at(static_cast<std::size_t>(pair.to));
      if (pair.reach != Reach::kAll && ++bad <= kMostPairs)
        found.push_back(broken(peers[from], to, pair));
      if (pair.reach != Reach::kNothing) links.add(peers[from], to, pair);
    }
  }
  if (bad > kMostPairs)
    found.push_back({Level::kFailure, "pairs", fmt::format("{} more like these", bad - kMostPairs),
                     "see above"});
  if (bad == 0)
    found.push_back({Level::kOk, "pairs",
                     fmt::format("{} nodes reach each other, with 64 KiB too", peers.size())});
  judge_links(links, found);
  judge_equal({"torch", &Peer::torch, Level::kFailure,
               "`pip install torch==VERSION` with one version on all nodes"},
              peers, found);
  judge_equal({"GPU driver", &Peer::driver, Level::kWarning, "install one driver on all nodes"},
              peers, found);
  return found;
}

}  // namespace ddprun::launcher
