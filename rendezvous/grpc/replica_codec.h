// The messages about replicas (rendezvous/core/replicas.h) as they travel: for codec.h. As with
// evidence nothing of it is refused: both sides leave out what is too much. Pure; any thread.
#pragma once

#include "proto/rendezvous.pb.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::rendezvous {

v4::ReplicaReport encode_replicas(const ReplicaReport& report);
ReplicaReport decode_replicas(const v4::ReplicaReport& message);
v4::ReplicaQuestion encode_replica_question(const ReplicaQuestion& question);
ReplicaQuestion decode_replica_question(const v4::ReplicaQuestion& message);
v4::ReplicaVerdict encode_replica_verdict(const ReplicaVerdict& verdict);
ReplicaVerdict decode_replica_verdict(const v4::ReplicaVerdict& message);

}  // namespace ddprun::rendezvous
