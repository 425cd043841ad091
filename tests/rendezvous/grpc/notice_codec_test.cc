#include "rendezvous/grpc/notice_codec.h"

#include <gtest/gtest.h>

#include <csignal>
#include <limits>

#include "tests/rendezvous/grpc/over_the_wire.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::milliseconds;

TEST(NoticeCodec, ANoticeAndAnAnswerArriveAsTheyWereSaid) {
  const Notice notice{.round = 3, .signo = SIGUSR1, .deadline = milliseconds(1'500)};
  EXPECT_EQ(travelled<Notice>(NodeMessage(notice)), notice);
  const StepAnswer answer{.round = 3, .number = 7, .steps = 1'204};
  EXPECT_EQ(travelled<StepAnswer>(NodeMessage(answer)), answer);
}

TEST(NoticeCodec, AnOrderArrivesAsItWasSaid) {
  const StepOrder order{.round = 2,
                        .number = 5,
                        .stage = StepStage::kHold,
                        .step = 106,
                        .signo = SIGTERM,
                        .deadline = milliseconds(28'000),
                        .is_end = false,
                        .hostname = "node-b"};
  EXPECT_EQ(travelled_down<StepOrder>(order), order);
}

TEST(NoticeCodec, AValueOutOfItsRangeBecomesTheNearestOne) {
  const Notice strange{.signo = -9, .deadline = milliseconds(-1)};
  const auto got = travelled<Notice>(NodeMessage(strange));
  EXPECT_EQ(got.signo, 0);
  EXPECT_EQ(got.deadline, milliseconds(0));
  StepOrder order{.step = -4, .signo = std::numeric_limits<int>::max()};
  order.stage = static_cast<StepStage>(9);
  const auto ordered = travelled_down<StepOrder>(order);
  EXPECT_EQ(ordered.stage, StepStage::kTake);
  EXPECT_EQ(ordered.step, 0);
  EXPECT_EQ(ordered.signo, SIGRTMAX);
}

}  // namespace
}  // namespace ddprun::rendezvous
