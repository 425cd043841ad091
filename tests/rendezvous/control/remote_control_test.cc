// Operators over TCP: a question and its answer, a wait, the token; and a service of many jobs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "proto/control.grpc.pb.h"
#include "rendezvous/control/codec.h"
#include "rendezvous/control/control_client.h"
#include "rendezvous/control/control_service.h"
#include "rendezvous/grpc/channel.h"
#include "rendezvous/grpc/codec.h"
#include "rendezvous/trust/node_handshake.h"
#include "tests/rendezvous/grpc/remote_fixture.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kTestPageBytes = 500;

class ControlTest : public RemoteTest {
 protected:
  // A service of many jobs; each has the token "t-<id>" and two nodes.
  ControlTest() {
    const auto token = [](const std::string& id) { return std::optional(HostToken{"t-" + id}); };
    operators.emplace(loop, ControlService::Options{.token = token,
                                                    .jobs =
                                                        [this] {
                                                          std::vector<JobControl*> all;
                                                          for (auto& [id, job] : jobs)
                                                            all.push_back(&job->control);
                                                          return all;
                                                        },
                                                    .page_bytes = kTestPageBytes});
    service.emplace(
        loop,
        ServiceOptions{
            .jobs = ManyJobs{.token = token,
                             .host = [this](const std::string& id, const NodeSpec&,
                                            std::int64_t) -> std::variant<Host*, HostMessage> {
                               if (id == "unwanted")
                                 return SessionLost{Error(ErrorCode::kLimit, "no room for it")};
                               auto& job = jobs[id];
                               if (!job) job = std::make_unique<Job>(loop, id);
                               return &job->host;
                             }},
            .keep_alive = kNoHeartbeats,
            .more = [this](grpc::ServerBuilder& builder) { operators->add_to(builder); }});
    listener.emplace(loop, [this](tcp::socket socket) { service->adopt(socket.release()); });
  }
  ~ControlTest() override {
    listener.reset();
    operators->end();
    service.reset();
  }

  RemoteOptions to_job(const std::string& id) const {
    RemoteOptions options = to(listener->port());
    options.token.key = "t-" + id;
    options.rdzv_id = id;
    return options;
  }
  // The client blocks, so it has a thread of its own while the loop serves it.
  ControlAnswer ask(const ControlQuestion& question, const std::string& token,
                    milliseconds limit = kTestLimit) {
    auto answer = start(question, token, limit);
    EXPECT_TRUE(run_until(loop, [&] { return is_ready(answer); }));
    return answer.get();
  }
  std::future<ControlAnswer> start(const ControlQuestion& question, const std::string& token,
                                   milliseconds limit = kTestLimit) {
    return beside_the_loop([=, port = listener->port()] {
      return rendezvous::ask({.addresses = {"127.0.0.1"},
                              .port = port,
                              .token = {token},
                              .connect_limit = kTestLimit,
                              .answer_limit = limit},
                             question);
    });
  }
  // Runs a blocking call in a thread of its own; the loop is woken when it is done.
  template <typename Work>
  std::future<std::invoke_result_t<Work>> beside_the_loop(Work work) {
    std::promise<std::invoke_result_t<Work>> promise;
    auto future = promise.get_future();
    threads.emplace_back([this, work, promise = std::move(promise)]() mutable {
      promise.set_value(work());
      asio::post(loop, [] {});
    });
    return future;
  }
  template <typename T>
  static bool is_ready(const std::future<T>& future) {
    return future.wait_for(milliseconds(0)) == std::future_status::ready;
  }

  struct Job {
    Job(asio::io_context& loop, const std::string& id)
        : host(loop, {.min_nodes = 1,
                      .max_nodes = 2,
                      .settings = {.last_call = std::chrono::minutes(10)}}),
          control(host, id) {}
    Host host;
    JobControl control;
  };
  std::map<std::string, std::unique_ptr<Job>> jobs;
  std::optional<ControlService> operators;
  std::optional<Service> service;
  std::optional<Listener> listener;
  std::vector<std::jthread> threads;
};

TEST_F(ControlTest, JobsOnOnePortKnowNothingOfEachOther) {
  TestNode a1;
  TestNode a2;
  TestNode b;
  join(a1, to_job("a"), make_node("same-id"));
  join(b, to_job("b"), make_node("same-id"));
  join(a2, to_job("a"), make_node("other"));
  EXPECT_TRUE(all_hear<RoundPublished>({&a1, &a2})) << a1.error() << a2.error();
  ASSERT_TRUE(run_until(loop, [&] { return jobs.contains("b"); }));
  EXPECT_FALSE(b.last_is<RoundPublished>());
  EXPECT_EQ(jobs.at("b")->host.membership().members().size(), 1);
}

TEST_F(ControlTest, AJobThatMustNotBeIsRefusedWithTheReason) {
  TestNode node;
  join(node, to_job("unwanted"), make_node("n"));
  EXPECT_TRUE(all_hear<SessionLost>({&node}));
  EXPECT_EQ(node.error(), "no room for it");
}

TEST_F(ControlTest, AQuestionIsAnswered) {
  TestNode a;
  TestNode b;
  join(a, to_job("a"), make_node("n0"));
  join(b, to_job("a"), make_node("n1"));
  ASSERT_TRUE(all_hear<RoundPublished>({&a, &b}));
  const auto shown = ask({"a", ShowJobs{}}, "t-a");
  ASSERT_EQ(shown.jobs.size(), 1U) << shown.text;
  EXPECT_EQ(shown.jobs[0].phase, JobPhase::kRunning);
  EXPECT_EQ(shown.jobs[0].nodes.size(), 2U);
  EXPECT_EQ(ask({"a", DrainNode{"n1", std::chrono::seconds(3)}}, "t-a").outcome,
            ControlOutcome::kDone);
  ASSERT_TRUE(all_hear<Drain>({&b}));
  EXPECT_EQ(ask({"a", DrainNode{"n7"}}, "t-a").outcome, ControlOutcome::kUnknown);
  EXPECT_EQ(ask({"nobody", ShowJobs{}}, "t-nobody").outcome, ControlOutcome::kUnknown);
  EXPECT_EQ(ask({"a", ResizeJob{2, 1}}, "t-a").outcome, ControlOutcome::kRefused);
}

TEST_F(ControlTest, TheTokenIsThatOfTheJob) {
  EXPECT_EQ(ask({"a", ShowJobs{}}, "t-b").outcome, ControlOutcome::kWrongToken);
  EXPECT_EQ(ask({"a", ShowJobs{}}, "").outcome, ControlOutcome::kWrongToken);
}

// A caller proves that it knows the token of one job, and asks about another one.
TEST_F(ControlTest, AProofIsForOneJobOnly) {
  TestNode b;
  join(b, to_job("b"), make_node("n0"));
  ASSERT_TRUE(run_until(loop, [&] { return jobs.contains("b"); }));
  auto asked = beside_the_loop([port = listener->port()] {
    const auto channel = make_channel("127.0.0.1", port, {});
    grpc::ClientContext context;
    NodeHandshake handshake({"t-a"}, "a", Deed::kOperate);
    context.AddMetadata(kJobMetadata, "a");
    context.AddMetadata(kNonceMetadata, handshake.begin());
    const auto call = control::v2::Control::NewStub(channel)->Ask(&context);
    control::v2::Answer message;
    EXPECT_TRUE(call->Read(&message));
    control::v2::ProvenQuestion question;
    question.set_question(encode(ControlQuestion{"b", StopJob{"me"}}));
    question.set_proof(
        handshake.challenged({message.challenge().nonce()}, {}, question.question())->bytes);
    call->Write(question);
    EXPECT_FALSE(call->Read(&message));
    return call->Finish().error_message();
  });
  ASSERT_TRUE(run_until(loop, [&] { return is_ready(asked); }));
  EXPECT_EQ(asked.get(), "the proof is for another job");
  EXPECT_FALSE(jobs.at("b")->host.membership().ended());
}

TEST_F(ControlTest, AWaitEndsWithTheJob) {
  TestNode a;
  join(a, to_job("a"), make_node("n0"));
  ASSERT_TRUE(run_until(loop, [&] { return jobs.contains("a"); }));
  auto waits = start({"a", AwaitEnd{}}, "t-a");
  EXPECT_EQ(ask({"a", AwaitEnd{}}, "t-a", milliseconds(300)).outcome,
            ControlOutcome::kStillRunning);
  EXPECT_FALSE(is_ready(waits));
  EXPECT_EQ(ask({"a", StopJob{"me"}}, "t-a").outcome, ControlOutcome::kDone);
  ASSERT_TRUE(run_until(loop, [&] { return is_ready(waits); }));
  const auto end = waits.get();
  EXPECT_EQ(end.outcome, ControlOutcome::kJobFailed);
  EXPECT_EQ(end.text, "me stopped the job");
  ASSERT_TRUE(all_hear<JobEnded>({&a}));
}

// ddpctl asks again every 30 s until the end of a job that may take weeks.
TEST_F(ControlTest, AWaitThatWasGivenUpIsForgotten) {
  TestNode a;
  join(a, to_job("a"), make_node("n0"));
  ASSERT_TRUE(run_until(loop, [&] { return jobs.contains("a"); }));
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(ask({"a", AwaitEnd{}}, "t-a", milliseconds(100)).outcome,
              ControlOutcome::kStillRunning);
  // The service hears of the end of the last ones when it likes.
  ASSERT_TRUE(run_until(loop, [&] {
    jobs.at("a")->control.wait([](const JobControl::End&) {}, [] { return true; });
    return jobs.at("a")->control.waiters() == 1;
  }));
}

TEST_F(ControlTest, ManyJobsAreShownOnSeveralPages) {
  for (int i = 0; i < 40; ++i) {
    const auto id = fmt::format("job-{:02}", i);
    jobs[id] = std::make_unique<Job>(loop, id);
  }
  const auto shown = ask({"", ShowJobs{}}, "t-");
  ASSERT_EQ(shown.jobs.size(), 40U) << shown.text;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < shown.jobs.size(); ++i) {
    EXPECT_EQ(shown.jobs[i].job, fmt::format("job-{:02}", i));
    bytes += encoded_bytes(shown.jobs[i]);
  }
  EXPECT_GT(bytes, 2 * kTestPageBytes) << "several pages";
  EXPECT_EQ(ask({"", ShowJobs{"job-37"}}, "t-").jobs.size(), 2U);
}

TEST_F(ControlTest, AServiceThatEndsLetsNobodyWait) {
  TestNode a;
  join(a, to_job("a"), make_node("n0"));
  ASSERT_TRUE(run_until(loop, [&] { return jobs.contains("a"); }));
  auto waits = start({"a", AwaitEnd{}}, "t-a");
  ASSERT_TRUE(run_until(loop, [&] { return jobs.at("a")->control.waiters() == 1; }));
  const auto begin = steady_clock::now();
  operators->end();
  service.reset();
  EXPECT_EQ(waits.get().outcome, ControlOutcome::kUnreachable);
  EXPECT_LT(steady_clock::now() - begin, kFlushLimit + std::chrono::seconds(5));
}

}  // namespace
}  // namespace ddprun::rendezvous
