// ddprund's command line and its file: values, which of them wins, and what is refused.
#include "daemon/daemon_options.h"

#include <gtest/gtest.h>

namespace ddprun::daemon {
namespace {

using Flags = std::vector<std::string>;

// The path is the text.
Result<std::string> path_is_text(const std::string& path) {
  if (path == "missing") return Error(ErrorCode::kNotFound, "expected a readable file");
  return path;
}
DaemonOptions options_of(const Flags& words) {
  const auto parsed = parse_daemon(words, path_is_text);
  if (const auto* wrong = std::get_if<DaemonUsageError>(&parsed)) ADD_FAILURE() << wrong->message;
  return std::get<DaemonOptions>(parsed);
}
std::string error_of(const Flags& words) {
  const auto parsed = parse_daemon(words, path_is_text);
  const auto* error = std::get_if<DaemonUsageError>(&parsed);
  return error == nullptr ? "no error" : error->message;
}

TEST(DaemonOptionsTest, FlagsAreRead) {
  EXPECT_EQ(options_of({}), DaemonOptions());
  const auto options = options_of({"--listen=127.0.0.1:5", "--token-file=/t", "--max-jobs=7",
                                   "--max-nodes-per-job", "8", "--max-nodes=6", "--max-memory=9",
                                   "--forget-after=1.5", "--max-ended-jobs=0"});
  EXPECT_EQ(options.address, "127.0.0.1");
  EXPECT_EQ(options.port, 5);
  EXPECT_EQ(options.token_file, "/t");
  EXPECT_EQ(options.limits.jobs, 7);
  EXPECT_EQ(options.limits.nodes_per_job, 8);
  EXPECT_EQ(options.limits.nodes, 6);
  EXPECT_EQ(options.limits.memory_bytes, 9U << 20);
  EXPECT_EQ(options.limits.forget_after.count(), 1500);
  EXPECT_EQ(options.limits.ended_jobs, 0);
}

TEST(DaemonOptionsTest, ListenTakesAPortOrAnAddress) {
  EXPECT_EQ(options_of({"--listen=7"}).address, "::");
  EXPECT_EQ(options_of({"--listen=7"}).port, 7);
  EXPECT_EQ(options_of({"--listen=[::1]:7"}).address, "::1");
  const std::string accepted =
      "expected PORT or ADDRESS:PORT with a numeric address; see ddprund --help";
  for (const std::string text : {"name:7", "127.0.0.1", "", "70000"})
    EXPECT_EQ(error_of({"--listen=" + text}), "--listen=" + text + ": " + accepted);
}

TEST(DaemonOptionsTest, HttpTakesAPortOrAnAddress) {
  EXPECT_EQ(options_of({}).http, std::nullopt);
  EXPECT_EQ(options_of({"--http=:9400"}).http, (HttpAddress{"", 9400}));
  EXPECT_EQ(options_of({"--http=9400"}).http, (HttpAddress{"", 9400}));
  EXPECT_EQ(options_of({"--http=[::]:0"}).http, (HttpAddress{"::", 0}));
  EXPECT_EQ(options_of({R"(--config={"http": 9400})"}).http, (HttpAddress{"", 9400}));
  EXPECT_EQ(error_of({"--http=name:1"}),
            "--http=name:1: expected PORT, :PORT, ADDRESS:PORT or [V6]:PORT with a numeric address "
            "and a port up to 65535; see ddprund --help");
}

TEST(DaemonOptionsTest, AGroupHasMembersOfEtcd) {
  EXPECT_FALSE(options_of({}).has_group());
  const auto options = options_of({"--etcd-conf=etcd_prefix=/x,username=u,password=p",
                                   "--group=g.1", R"(--config={"etcd_endpoint": "h1:7,h2"})"});
  EXPECT_TRUE(options.has_group());
  EXPECT_EQ(options.group, "g.1");
  EXPECT_EQ(options.etcd.members,
            (std::vector<rendezvous::EtcdMemberPlan>{{"h1", 7}, {"h2", 2379}}));
  EXPECT_EQ(options.etcd.prefix, "/x");
  EXPECT_EQ(options.etcd.username, "u");
}

TEST(DaemonOptionsTest, AGroupThatCannotBeIsRefused) {
  const std::string alone =
      "--group and --etcd-conf: expected --etcd-endpoint with them; see ddprund --help";
  EXPECT_EQ(error_of({"--group=g"}), alone);
  EXPECT_EQ(error_of({"--etcd-conf=etcd_prefix=/x"}), alone);
  EXPECT_EQ(error_of({"--etcd-endpoint=h", "--group="}),
            "--group=: expected a group of 1 to 64 letters, digits, dots, hyphens and underscores; "
            "see ddprund --help");
  EXPECT_EQ(error_of({"--etcd-endpoint=h", "--etcd-conf=cert=c,protocol=https"}),
            "--etcd-conf=cert=c,protocol=https: expected both or none of cert and key; see ddprund "
            "--help");
  EXPECT_NE(error_of({"--etcd-endpoint=h", "--etcd-conf=join_timeout=1"})
                .find("expected keys of etcd_prefix, protocol, "),
            std::string::npos);
}

TEST(DaemonOptionsTest, TheFileIsReadAndFlagsWin) {
  const auto options =
      options_of({"--max-jobs=3", R"(--config={"max_jobs": 2, "listen": "9", "forget_after": 4})"});
  EXPECT_EQ(options.limits.jobs, 3);
  EXPECT_EQ(options.port, 9);
  EXPECT_EQ(options.limits.forget_after.count(), 4000);
}

TEST(DaemonOptionsTest, WhatIsWrongIsNamed) {
  EXPECT_EQ(error_of({"--max-jobs=0"}), "--max-jobs=0: expected 1 to 1000000; see ddprund --help");
  EXPECT_EQ(error_of({"--max-nodes-per-job=x"}),
            "--max-nodes-per-job=x: expected 1 to 16384; see ddprund --help");
  EXPECT_EQ(error_of({"operand"}), "operand: expected no operands; see ddprund --help");
  EXPECT_NE(error_of({"--no"}).find("--no: an unknown option"), std::string::npos);
  EXPECT_EQ(error_of({"--config=missing"}),
            "--config=missing: expected a readable file; see ddprund --help");
  EXPECT_EQ(error_of({"--config=[]"}), "--config=[]: expected a JSON object; see ddprund --help");
  EXPECT_EQ(error_of({R"(--config={"jobs": 1})"}),
            R"(--config={"jobs": 1}: jobs: no such setting; see ddprund --help)");
  EXPECT_EQ(
      error_of({R"(--config={"max_jobs": true})"}),
      R"(--config={"max_jobs": true}: max_jobs=true: expected 1 to 1000000; see ddprund --help)");
}

TEST(DaemonOptionsTest, WhatIsWrongInTheFileIsOneLine) {
  EXPECT_EQ(error_of({R"(--config={"a\nb": 1})"}),
            R"(--config={"a\nb": 1}: a b: no such setting; see ddprund --help)");
  EXPECT_EQ(
      error_of({R"(--config={"max_jobs": "1\n"})"}),
      R"(--config={"max_jobs": "1\n"}: max_jobs=1 : expected 1 to 1000000; see ddprund --help)");
  EXPECT_EQ(
      error_of({R"(--config={"token_file": "/t\u0000x"})"}),
      R"(--config={"token_file": "/t\u0000x"}: token_file=/t x: expected a text without a zero )"
      "byte; see ddprund --help");
  EXPECT_EQ(
      error_of({R"(--config={"max_jobs": [[1]]})"}),
      R"(--config={"max_jobs": [[1]]}: max_jobs: expected a text or a number; see ddprund --help)");
}

TEST(DaemonOptionsTest, ThePasswordOfEtcdIsNotShown) {
  const std::string wrong = error_of({"--etcd-conf=username=u,password=secret,x=1"});
  EXPECT_TRUE(wrong.starts_with("--etcd-conf=username=u,password=…,x=1: expected ")) << wrong;
  EXPECT_EQ(error_of({"--etcd-conf=password=secret,x"}).find("secret"), std::string::npos);
}

TEST(DaemonOptionsTest, HelpNamesEveryFlag) {
  const auto help = std::get<DaemonAnswer>(parse_daemon({"--help"}, path_is_text)).text;
  for (const char* flag :
       {"--listen", "--token-file", "--max-jobs", "--max-nodes-per-job", "--max-nodes=N",
        "--max-memory", "--forget-after", "--max-ended-jobs", "--http", "--config"})
    EXPECT_NE(help.find(flag), std::string::npos) << flag;
}

}  // namespace
}  // namespace ddprun::daemon
