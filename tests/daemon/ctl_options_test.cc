// ddpctl's command line: what is asked, and what is refused with which words.
#include "daemon/ctl_options.h"

#include <gtest/gtest.h>

namespace ddprun::daemon {
namespace {

using Words = std::vector<std::string>;

std::variant<CtlOptions, CtlAnswer, CtlUsageError> parse(const Words& words,
                                                         const std::string& endpoint = "h:1") {
  return parse_ctl(words, [&](std::string_view name) {
    return name == "DDPRUN_ENDPOINT" && !endpoint.empty() ? std::optional(endpoint) : std::nullopt;
  });
}
CtlOptions good(const Words& words) {
  auto parsed = parse(words);
  if (const auto* wrong = std::get_if<CtlUsageError>(&parsed)) ADD_FAILURE() << wrong->message;
  return std::get<CtlOptions>(parsed);
}
std::string wrong(const Words& words, const std::string& endpoint = "h:1") {
  const auto parsed = parse(words, endpoint);
  const auto* error = std::get_if<CtlUsageError>(&parsed);
  return error == nullptr ? "no error" : error->message;
}

TEST(CtlOptionsTest, EveryCommandIsRead) {
  EXPECT_EQ(good({"jobs"}).command, CtlCommand::kJobs);
  EXPECT_EQ(good({"status"}).question.job, "");
  EXPECT_EQ(good({"status", "j"}).question.job, "j");
  EXPECT_EQ(good({"nodes", "j"}).command, CtlCommand::kNodes);
  EXPECT_TRUE(std::holds_alternative<rendezvous::StopJob>(good({"stop", "j"}).question.verb));
  EXPECT_TRUE(std::holds_alternative<rendezvous::AwaitEnd>(good({"wait", "j"}).question.verb));
  EXPECT_TRUE(
      std::holds_alternative<rendezvous::SaveCheckpoint>(good({"checkpoint", "j"}).question.verb));
  const auto resize = std::get<rendezvous::ResizeJob>(good({"resize", "j", "2:4"}).question.verb);
  EXPECT_EQ(resize.min_nodes, 2);
  EXPECT_EQ(resize.max_nodes, 4);
  const auto options = good({"drain", "j", "n", "--deadline", "1.5", "--json"});
  const auto drain = std::get<rendezvous::DrainNode>(options.question.verb);
  EXPECT_EQ(drain.node, "n");
  EXPECT_EQ(drain.deadline.count(), 1500);
  EXPECT_TRUE(options.json);
}

TEST(CtlOptionsTest, TheFlagWinsOverTheVariable) {
  using Endpoints = std::vector<CtlEndpoint>;
  EXPECT_EQ(good({"jobs"}).endpoints, (Endpoints{{"h", 1}}));
  EXPECT_EQ(good({"--endpoint=other", "jobs"}).endpoints, (Endpoints{{"other", 29400}}));
  EXPECT_EQ(good({"jobs", "--endpoint=a:2,[::1]:3,b"}).endpoints,
            (Endpoints{{"a", 2}, {"::1", 3}, {"b", 29400}}));
  EXPECT_EQ(good({"jobs", "--token-file=/t"}).token_file, "/t");
}

TEST(CtlOptionsTest, WithoutAnEndpointThisHostIsAsked) {
  for (const Words& words : {Words{"jobs"}, {"status"}, {"status", "j"}, {"nodes", "j"}}) {
    const auto parsed = parse(words, "");
    ASSERT_TRUE(std::holds_alternative<CtlOptions>(parsed)) << words[0];
    EXPECT_TRUE(std::get<CtlOptions>(parsed).endpoints.empty());
  }
  for (const char* flag : {"--endpoint=", "--token-file=/t"})
    EXPECT_EQ(wrong({flag, "jobs"}, ""),
              "no endpoint: expected --endpoint=HOST:PORT or DDPRUN_ENDPOINT; see ddpctl --help");
}

TEST(CtlOptionsTest, StacksAreThisHosts) {
  const CtlOptions options = good({"stacks", "j", "3", "0"});
  EXPECT_TRUE(options.endpoints.empty()) << "whatever DDPRUN_ENDPOINT is";
  EXPECT_EQ(options.question.job, "j");
  EXPECT_EQ(std::get<rendezvous::ShowStacks>(options.question.verb).ranks,
            (std::vector<int>{3, 0}));
  EXPECT_TRUE(good({"stacks"}).question.job.empty());
  EXPECT_EQ(wrong({"stacks", "j", "-1"}),
            "-1: an unknown option, or its value is missing or too much; see ddpctl --help");
  EXPECT_EQ(wrong({"stacks", "j", "x"}),
            "stacks j x: expected a global rank, 0 or more; see ddpctl --help");
  EXPECT_EQ(wrong({"stacks", "j", "--endpoint=h"}),
            "--endpoint is not for stacks: each node shows its own ranks; see ddpctl --help");
  EXPECT_EQ(wrong({"stacks", "j", "--token-file=t"}),
            "--token-file is not for stacks: each node shows its own ranks; see ddpctl --help");
  EXPECT_EQ(wrong({"stacks", "--tls-ca=c", "--tls-cert=d", "--tls-key=e"}),
            "--tls-ca, --tls-cert and --tls-key are not for stacks: each node shows its own ranks; "
            "see ddpctl --help");
}

TEST(CtlOptionsTest, WhatIsWrongIsNamed) {
  EXPECT_EQ(
      wrong({}),
      "no command: expected jobs, status, nodes, top, drain, forgive, resize, checkpoint, stop, "
      "wait or stacks; see ddpctl --help");
  EXPECT_EQ(
      wrong({"go"}),
      "go: expected one of jobs, status, nodes, top, drain, forgive, resize, checkpoint, stop, "
      "wait and stacks; see ddpctl --help");
  EXPECT_EQ(wrong({"drain", "j"}), "drain takes JOB NODE, not 1 operand(s); see ddpctl --help");
  EXPECT_EQ(wrong({"jobs", "j"}), "jobs takes no operand, not 1 operand(s); see ddpctl --help");
  EXPECT_EQ(wrong({"stop", "j"}, ""),
            "no endpoint: expected --endpoint=HOST:PORT or DDPRUN_ENDPOINT; see ddpctl --help");
  EXPECT_EQ(wrong({"stop", "j", "--deadline=1"}),
            "--deadline is for drain only; see ddpctl --help");
  EXPECT_EQ(wrong({"drain", "j", "n", "--deadline=0"}),
            "--deadline=0: expected more than 0 seconds; see ddpctl --help");
  EXPECT_NE(wrong({"drain", "j", "n", "--deadline=x"}).find("--deadline=x: expected"),
            std::string::npos);
  EXPECT_NE(wrong({"resize", "j", "4:2"}).find("resize 4:2: "), std::string::npos);
  EXPECT_NE(wrong({"jobs", "--endpoint=h:x"}).find("--endpoint=h:x: "), std::string::npos);
  EXPECT_NE(wrong({"jobs", "--no"}).find("--no: an unknown option"), std::string::npos);
  EXPECT_EQ(wrong({"stop", ""}), "JOB is empty: expected a --rdzv-id; see ddpctl --help");
}

TEST(CtlOptionsTest, HelpNamesEveryExitCode) {
  const auto help = std::get<CtlAnswer>(parse({"--help"}, "")).text;
  for (const char* code : {"\n  0  ", "\n  1  ", "\n  2  ", "\n  3  ", "\n  4  ", "\n  5  "})
    EXPECT_NE(help.find(code), std::string::npos) << code;
  EXPECT_TRUE(std::get<CtlAnswer>(parse({"--version"}, "")).text.starts_with("ddpctl "));
}

}  // namespace
}  // namespace ddprun::daemon
