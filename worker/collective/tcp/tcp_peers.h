// The links to all other ranks. They bring one operation on with all of them, and wait with a
// limit. They say who is late, gone, or does something else. Part of TcpCollective: one thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "worker/collective/tcp/tcp_link.h"

namespace ddprun::worker {

class TcpPeers {
 public:
  struct Options {
    TcpPlace place;
    std::chrono::milliseconds timeout{};  // how long nothing may move between us and those awaited
  };

  // By rank; the own link is empty. `hosts` are names for messages.
  TcpPeers(std::vector<TcpLink> links, std::vector<std::string> hosts, const Options& options);
  TcpPeers(const TcpPeers&) = delete;
  TcpPeers& operator=(const TcpPeers&) = delete;
  TcpPeers(TcpPeers&&) = delete;
  TcpPeers& operator=(TcpPeers&&) = delete;
  // Tells the others that this rank leaves.
  ~TcpPeers();

  TcpPlace place() const { return options_.place; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }

  // Operations come one after another: call start() once for each, then advance() or await() until
  // it is complete. All throw CollectiveError.
  void start();
  // Moves what can be moved now. Returns whether the operation is complete here.
  bool advance(TcpOperation& operation);
  // A limit of the whole wait, and what is left of it.
  struct Limit {
    std::chrono::milliseconds whole;
    std::chrono::milliseconds left;
  };
  // Returns once it is complete here. `limit` stands in place of the timeout; past it all ranks
  // that have not come are named.
  void await(TcpOperation& operation, std::optional<Limit> limit = {});

  // Gives up `current`, which may be null, and all that others have under way. Returns when all
  // have called it: how far each was.
  std::vector<ResetNote> reset(const TcpOperation* current, const ResetNote& mine);

  // Ends the collective. The others throw with the same reason, where it reaches them.
  [[noreturn]] void abort(const TcpOperation* current, const std::string& why);

 private:
  struct Doing {
    TcpOperation* operation;
    std::chrono::milliseconds limit;
    bool names_all;
  };

  std::size_t pass(TcpOperation& operation);
  bool complete(const TcpOperation& operation) const;
  bool complete(const TcpOperation& operation, std::size_t peer) const {
    return !has_part(operation, peer) ||
           (links_[peer].sent(operation, peer) && links_[peer].received(operation, peer));
  }
  bool has_part(const TcpOperation& operation, std::size_t peer) const {
    return peer != options_.place.rank && operation.involves(peer);
  }
  void sleep(TcpOperation& operation, std::chrono::milliseconds limit);
  std::vector<std::size_t> late_ones(const TcpOperation& operation) const;
  void throw_if_reset() const;
  void note(TcpOperation& operation, std::size_t peer, TcpEvent& event);
  void give_up_late(const Doing& doing);
  void begin_reset(const TcpOperation* current, const ResetNote& mine);
  bool reset_step(const ResetNote& mine, std::vector<std::optional<ResetNote>>& theirs);
  void sleep_in_reset(const std::vector<std::optional<ResetNote>>& theirs,
                      std::chrono::milliseconds limit);
  [[noreturn]] void give_up_reset(const std::vector<std::optional<ResetNote>>& theirs);
  void throw_if_failed() const;
  std::string name(std::size_t peer) const;
  std::string last_of(std::size_t peer) const;

  std::vector<TcpLink> links_;
  std::vector<std::string> hosts_;
  Options options_;
  std::string failure_;                           // empty: none
  std::vector<std::optional<ResetNote>> resets_;  // by rank: it has called reset() before us
};

}  // namespace ddprun::worker
