// The messages about stragglers (rendezvous/core/stragglers.h) as they travel: for codec.h. As with
// evidence nothing of it is refused: both sides leave out what is too much. Pure; any thread.
#pragma once

#include "proto/rendezvous.pb.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::rendezvous {

v4::StepReport encode_steps(const StepReport& report);
StepReport decode_steps(const v4::StepReport& message);
v4::StragglerVerdict encode_straggler_verdict(const StragglerVerdict& verdict);
StragglerVerdict decode_straggler_verdict(const v4::StragglerVerdict& message);

}  // namespace ddprun::rendezvous
