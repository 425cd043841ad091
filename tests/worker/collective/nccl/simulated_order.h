// The order of accesses to memory of the simulated GPUs, however their streams' threads run. Each
// stream counts its tasks. A clock says up to which task of each stream all is over. Two accesses
// that meet are an error if one of them writes, and nothing orders them. No locks: the caller has
// one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::worker::sim {

// Up to which task each stream is over, by the stream's number. Tasks count from 1.
class VectorClock {
 public:
  void join(const VectorClock& other);
  std::uint64_t advance(int stream);  // by one task, which it returns
  bool has(int stream, std::uint64_t task) const;

 private:
  std::map<int, std::uint64_t> tasks_;
};

// Bytes that a task reads, or reads and writes.
struct Touched {
  const std::byte* begin;
  const std::byte* end;
  bool writes;

  bool meets(const Touched& other) const {
    return begin < other.end && other.begin < end && (writes || other.writes);
  }
};

// The accesses to a block that later ones are compared with.
class Accesses {
 public:
  // Adds that of a task. `before`: what is over when it begins. Returns a line about one that it
  // meets and that is not over.
  std::optional<std::string> add(const Touched& touched, int stream, std::uint64_t task,
                                 const VectorClock& before);
  // Returns whether all are over.
  bool over(const VectorClock& known) const;

 private:
  struct Access {
    Touched touched;
    int stream;
    std::uint64_t task;
  };
  std::vector<Access> all_;
};

}  // namespace ddprun::worker::sim
