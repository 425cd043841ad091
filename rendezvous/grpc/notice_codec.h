// The messages about a notice (rendezvous/core/preemption.h) as they travel: for codec.h. As with
// evidence nothing of it is refused: a value out of its range becomes the nearest one. Pure; any
// thread.
#pragma once

#include "proto/rendezvous.pb.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::rendezvous {

v4::Notice encode_notice(const Notice& notice);
Notice decode_notice(const v4::Notice& message);
v4::StepAnswer encode_answer(const StepAnswer& answer);
StepAnswer decode_answer(const v4::StepAnswer& message);
v4::StepOrder encode_step_order(const StepOrder& order);
StepOrder decode_step_order(const v4::StepOrder& message);

}  // namespace ddprun::rendezvous
