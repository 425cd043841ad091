// The messages of a node's session with the rendezvous, both ways. They are enough to go on over
// another connection, or with another leader that may not have heard all. Pure. Loop's thread;
// owned by the node's session.
#pragma once

#include <cstdint>
#include <optional>

#include "rendezvous/core/rendezvous.h"

namespace ddprun::rendezvous {

class SessionMemory {
 public:
  // ---- what the node says: as in Session ----
  void joined(const NodeSpec& node);
  void failed(std::int64_t round, const Failure& failure);
  void succeeded(std::int64_t round);
  void left(const Failure& reason) { left_ = reason; }
  bool has_left() const { return left_.has_value(); }

  // Notes a message of the host. False for a round that this node was told of before; it changes
  // nothing.
  bool on_message(const HostMessage& message);

  // A round was published to this node, and it has not asked for the next one: it may have workers.
  bool is_in_round() const { return is_in_round_; }
  // It was not told yet that this round is over.
  bool is_round_whole() const { return is_in_round_ && resumed_.state != NodeState::kStopping; }
  std::int64_t round() const { return resumed_.round; }
  const ResumeRequest& resumed() const { return resumed_; }

  // The first words of the next session. Nothing, if the node has not asked for a seat yet.
  void replay_to(Session& session);

 private:
  bool has_joined_ = false;
  bool is_in_round_ = false;
  ResumeRequest resumed_;
  std::optional<Failure> failure_;  // of this round; the host has not answered it
  std::optional<Failure> left_;
};

}  // namespace ddprun::rendezvous
