#include "rendezvous/grpc/notice_codec.h"

#include <algorithm>
#include <csignal>

#include "rendezvous/grpc/codec.h"
#include "rendezvous/grpc/cut_text.h"

namespace ddprun::rendezvous {
namespace {

// A year: a longer one is no deadline.
constexpr std::int64_t kLongestMs = std::int64_t{366} * 24 * 3'600 * 1'000;

std::chrono::milliseconds decode_deadline(std::int64_t ms) {
  return std::chrono::milliseconds(std::clamp<std::int64_t>(ms, 0, kLongestMs));
}

// 0: none.
int decode_signal(int signo) { return std::clamp(signo, 0, SIGRTMAX); }

}  // namespace

v4::Notice encode_notice(const Notice& notice) {
  v4::Notice message;
  message.set_round(notice.round);
  message.set_signo(notice.signo);
  message.set_deadline_ms(notice.deadline.count());
  message.set_is_end(notice.is_end);
  return message;
}

Notice decode_notice(const v4::Notice& message) {
  return {.round = message.round(),
          .signo = decode_signal(message.signo()),
          .deadline = decode_deadline(message.deadline_ms()),
          .is_end = message.is_end()};
}

v4::StepAnswer encode_answer(const StepAnswer& answer) {
  v4::StepAnswer message;
  message.set_round(answer.round);
  message.set_number(answer.number);
  message.set_steps(answer.steps);
  return message;
}

StepAnswer decode_answer(const v4::StepAnswer& message) {
  return {.round = message.round(), .number = message.number(), .steps = message.steps()};
}

v4::StepOrder encode_step_order(const StepOrder& order) {
  v4::StepOrder message;
  message.set_round(order.round);
  message.set_number(order.number);
  message.set_stage(static_cast<int>(order.stage));
  message.set_step(order.step);
  message.set_signo(order.signo);
  message.set_deadline_ms(order.deadline.count());
  message.set_is_end(order.is_end);
  message.set_hostname(cut(order.hostname, kMaxTextBytes));
  return message;
}

StepOrder decode_step_order(const v4::StepOrder& message) {
  const int stage = std::clamp(message.stage(), 0, static_cast<int>(StepStage::kTake));
  return {.round = message.round(),
          .number = message.number(),
          .stage = static_cast<StepStage>(stage),
          .step = std::max<std::int64_t>(message.step(), 0),
          .signo = decode_signal(message.signo()),
          .deadline = decode_deadline(message.deadline_ms()),
          .is_end = message.is_end(),
          .hostname = cut(message.hostname(), kMaxTextBytes)};
}

}  // namespace ddprun::rendezvous
