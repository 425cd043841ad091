// Turns the values of messages.h into the messages of proto/control.proto and back, and checks
// them. Pure; used by control_service.cc and control_client.cc only, on any thread.
#pragma once

#include "base/result.h"
#include "proto/control.pb.h"
#include "rendezvous/control/messages.h"
#include "rendezvous/trust/proof.h"

namespace ddprun::rendezvous {

// The most bytes of an answer: a page (control_service.h), and one job more, whose nodes have three
// names each.
inline constexpr int kMaxAnswerBytes = 32 * 1024 * 1024;

// As proofs have it and as it travels.
std::string encode(const ControlQuestion& question);
control::v2::Answer encode(const ControlAnswer& answer);
std::size_t encoded_bytes(const JobSnapshot& job);
control::v2::Answer encode_challenge(const Challenge& challenge);

// Errors: kProtocol, the message makes no sense; kLimit, a text of it is too long.
Result<ControlQuestion> decode_question(const std::string& bytes);
Result<ControlAnswer> decode(const control::v2::Answer& message);

}  // namespace ddprun::rendezvous
