// The findings of a job's nodes about each other, and their meaning. Each node writes its part as
// JSON into the job's store; the first one reads all of them. Pure; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/doctor/findings.h"

namespace ddprun::launcher {

// The report of a node about itself.
struct Peer {
  std::string host_name{};
  std::string address{};  // numeric, towards the other nodes
  int port = 0;           // a fresh one, at which it answers
  std::string torch{};    // empty: not known, or not needed
  std::string driver{};   // of its GPUs; empty: none
};

// How far a node came with another one.
enum class Reach {
  kNothing,    // no connection
  kSmallOnly,  // small messages come through, 64 KiB do not
  kAll,
};

struct Pair {
  int to = 0;  // node rank
  Reach reach = Reach::kNothing;
  std::string error{};          // with kNothing
  double round_trip = 0;        // seconds
  double clock_difference = 0;  // seconds; the other one's clock minus ours
};

std::string write_peer(const Peer& peer);
std::string write_pairs(const std::vector<Pair>& pairs);

// Read the text of another node, whatever it is: nothing if it makes no sense. All pairs go to one
// of `nodes`.
std::optional<Peer> read_peer(std::string_view text);
std::optional<std::vector<Pair>> read_pairs(std::string_view text, std::size_t nodes);

// `tried[i]` are the pairs of node i. Nothing if it did not say. As many as `peers`.
Findings judge_pairs(const std::vector<Peer>& peers,
                     const std::vector<std::optional<std::vector<Pair>>>& tried);

}  // namespace ddprun::launcher
