// Turns the types of rendezvous.h into the messages of proto/rendezvous.proto and back, and checks
// lengths. It does not check whether a value makes sense for the job; membership.h does. Pure; used
// by service.cc and client.cc only, on any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <variant>

#include "proto/rendezvous.pb.h"
#include "rendezvous/core/keep_alive.h"
#include "rendezvous/core/membership.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/grpc/evidence_codec.h"
#include "rendezvous/grpc/notice_codec.h"
#include "rendezvous/grpc/proof_codec.h"
#include "rendezvous/grpc/replica_codec.h"
#include "rendezvous/grpc/step_codec.h"
#include "rendezvous/trust/proof.h"

namespace ddprun::rendezvous {

// The most bytes of a name, an address or a role. A DNS name has at most 253.
inline constexpr std::size_t kMaxNameBytes = 255;
// The most bytes of a failure's text, which is one line for people. The sender cuts a longer one;
// the receiver refuses it.
inline constexpr std::size_t kMaxTextBytes = 4096;
// The most bytes of a node's message. Evidence fills it, and comes in parts (evidence_codec.h). A
// failure has one text and a hostname, a join four names and some numbers.
inline constexpr int kMaxUpBytes = 16 * 1024;
// The most bytes of a host's message. The largest is a verdict: one text and a list of ranks.
inline constexpr int kMaxDownBytes = kMaxUpBytes;
// The metadata that a node shows with its call to be let in. gRPC takes any bytes as a value if the
// name ends in "-bin" (gRPC doc/PROTOCOL-HTTP2.md). We need that: a job's id may be any text.
inline constexpr const char* kJobMetadata = "ddprun-rdzv-id-bin";
inline constexpr const char* kNonceMetadata = "ddprun-nonce-bin";

// The messages of a node. A NodeSpec asks to join; Gone is the last one of a node that left. A
// Heartbeat only says that the node lives, and when it said so by its own clock.
struct WorkerFailed {
  std::int64_t round = 0;
  Failure failure;
};
struct NodeSucceeded {
  std::int64_t round = 0;
};
struct Leave {
  Failure reason;
};
struct Gone {};
struct Heartbeat {
  std::chrono::milliseconds stamp{0};
};
using NodeMessage =
    std::variant<NodeSpec, WorkerFailed, NodeSucceeded, Leave, Gone, Heartbeat, ResumeRequest,
                 Proof, Suspicion, Evidence, ReplicaReport, StepReport, Notice, StepAnswer>;

// A node knows of no later round.
inline constexpr std::int64_t kMostRounds = std::int64_t{1} << 62;
// A node tells of no more restarts: the host counts on from there.
inline constexpr int kMostRestarts = 1 << 30;

// The host's answer to the heartbeat that had this stamp; 0: no heartbeat yet, the node was let in.
struct LeaseGrant {
  std::chrono::milliseconds stamp{0};
  Lease lease;
  std::optional<WaitStatus> wait_status{};
  bool may_return = false;    // as in SessionLost
  bool host_returns = false;  // as in SessionLost
  // The host knows what Suspicion and Evidence mean. An older one ends the session with them.
  bool takes_evidence = false;
  bool takes_replicas = false;  // as well, with ReplicaReport
  bool takes_steps = false;     // and with StepReport
  bool takes_notices = false;   // and with Notice and StepAnswer
};
// The messages that the host sends.
using DownMessage = std::variant<HostMessage, LeaseGrant, Challenge, HostProof>;

// No message follows.
inline bool is_last(const HostMessage& message) {
  return std::holds_alternative<JobEnded>(message) || std::holds_alternative<SessionLost>(message);
}

// A hostname or a text that is too long is cut here, between two characters. All other values
// travel unchanged.
v4::FromNode encode(const NodeMessage& said);
v4::ToNode encode(const HostMessage& said);
v4::ToNode encode(const LeaseGrant& grant);

// Errors: kProtocol if the message makes no sense, kLimit if a text of it is too long.
Result<NodeMessage> decode(const v4::FromNode& message);
Result<DownMessage> decode(const v4::ToNode& message);

}  // namespace ddprun::rendezvous
