// The messages about stragglers (rendezvous/core/stragglers.h) as they travel: for codec.h. As with
// evidence nothing of it is refused: both sides leave out what is too much. Pure; any thread.
#pragma once

#include "proto/rendezvous.pb.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::rendezvous {

using Microseconds = google::protobuf::RepeatedField<std::int64_t>;
// Its five times in their order. An older peer tells none, and all are 0 then.
void encode_spread(const StepSpread& spread, Microseconds& times);
StepSpread decode_spread(const Microseconds& times);

v4::StepReport encode_steps(const StepReport& report);
StepReport decode_steps(const v4::StepReport& message);
v4::StragglerVerdict encode_straggler_verdict(const StragglerVerdict& verdict);
StragglerVerdict decode_straggler_verdict(const v4::StragglerVerdict& message);

}  // namespace ddprun::rendezvous
