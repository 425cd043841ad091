// Questions and answers keep all that they say on the wire, and nonsense is refused.
#include <gtest/gtest.h>

#include "rendezvous/control/codec.h"

namespace ddprun::rendezvous {
namespace {

template <typename Verb>
Verb sent(const Verb& verb) {
  const auto decoded = decode_question(encode(ControlQuestion{"job", verb}));
  EXPECT_EQ(decoded.value().job, "job");
  return std::get<Verb>(decoded.value().verb);
}

TEST(ControlCodec, EveryQuestionArrives) {
  sent(ShowJobs{});
  sent(AwaitEnd{});
  sent(SaveCheckpoint{});
  EXPECT_EQ(sent(DrainNode{"n", std::chrono::milliseconds(5)}).deadline.count(), 5);
  EXPECT_EQ(sent(DrainNode{"n"}).node, "n");
  EXPECT_EQ(sent(ForgiveNode{"n"}).node, "n");
  EXPECT_EQ(sent(ResizeJob{2, 4}).max_nodes, 4);
  EXPECT_EQ(sent(StopJob{"me"}).by, "me");
  EXPECT_EQ(sent(ShowStacks{{7, 1}}).ranks, (std::vector<int>{7, 1}));
}

TEST(ControlCodec, AnAnswerArrives) {
  const JobSnapshot job{.job = "j",
                        .phase = JobPhase::kStopped,
                        .round = 7,
                        .restarts = 1,
                        .max_restarts = 2,
                        .min_nodes = 3,
                        .max_nodes = 4,
                        .waits_for = "w",
                        .end = "e",
                        .nodes = {{.id = "i",
                                   .hostname = "h",
                                   .role = "r",
                                   .node_rank = 1,
                                   .workers = 8,
                                   .state = MemberState::kDisbelieved,
                                   .hosts = true,
                                   .strikes = 1.5,
                                   .sits_out_s = 60}},
                        .incidents = {{.unix_ms = 9,
                                       .round = 6,
                                       .kind = IncidentKind::kResize,
                                       .hostname = "h",
                                       .rank = 3,
                                       .text = "t",
                                       .reformed_after_ms = 4}},
                        .periods = {{.kind = PeriodKind::kStandstill,
                                     .begin_ms = 3,
                                     .end_ms = 12,
                                     .round = 6,
                                     .workers = 2,
                                     .text = "s",
                                     .ranks = {5, 1}}},
                        .pid = 11,
                        .log_folder = "f",
                        .ranks = {{.rank = 2, .steps = 9, .quiet_ms = 8, .memory_bytes = 7}}};
  const auto decoded = decode(encode(ControlAnswer{ControlOutcome::kUnknown, "text", {job}}));
  EXPECT_EQ(decoded.value().outcome, ControlOutcome::kUnknown);
  EXPECT_EQ(decoded.value().text, "text");
  ASSERT_EQ(decoded.value().jobs.size(), 1U);
  EXPECT_EQ(decoded.value().jobs[0], job);
}

TEST(ControlCodec, StacksArrive) {
  const RankStack stack{.rank = 3,
                        .pid = 12,
                        .frames = {{"f", "/a.py", 7}, {"g", "/b.py", 8}},
                        .why = "y",
                        .waits_in = "w",
                        .kernel = "S",
                        .steps = 5};
  const auto decoded = decode(encode(ControlAnswer{.stacks = {stack, {.rank = 4}}}));
  EXPECT_EQ(decoded.value().stacks, (std::vector<RankStack>{stack, {.rank = 4}}));
}

TEST(ControlCodec, NonsenseIsRefused) {
  EXPECT_EQ(decode_question("").error().code(), ErrorCode::kProtocol);
  EXPECT_EQ(
      decode_question(encode(ControlQuestion{std::string(256, 'x'), ShowJobs{}})).error().code(),
      ErrorCode::kLimit);
  control::v2::Question question;
  question.mutable_drain()->set_deadline_ms(-1);
  EXPECT_EQ(std::get<DrainNode>(decode_question(question.SerializeAsString()).value().verb)
                .deadline.count(),
            0);
}

TEST(ControlCodec, WhatANewerPeerKnowsIsRead) {
  control::v2::Answer answer;
  answer.set_outcome(99);
  answer.add_jobs()->set_phase(99);
  EXPECT_EQ(decode(answer).value().outcome, ControlOutcome::kRefused);
  EXPECT_EQ(decode(answer).value().jobs[0].phase, JobPhase::kFailed);
}

}  // namespace
}  // namespace ddprun::rendezvous
