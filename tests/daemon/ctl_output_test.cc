// The output of ddpctl, and its exit codes. tests/jobs/control_test.py checks the JSON of real
// jobs.
#include "daemon/ctl_output.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ddprun::daemon {
namespace {

using rendezvous::ControlAnswer;
using rendezvous::ControlOutcome;

const rendezvous::JobSnapshot kJob{
    .job = "train",
    .phase = rendezvous::JobPhase::kRunning,
    .round = 2,
    .restarts = 1,
    .max_restarts = 3,
    .min_nodes = 1,
    .max_nodes = 4,
    .nodes = {{.id = "n0-1",
               .hostname = "n0\x1b[2J",
               .role = "default",
               .node_rank = 0,
               .workers = 8,
               .state = rendezvous::MemberState::kRunning,
               .hosts = true},
              {.id = "n1-1", .hostname = "n1", .role = "default", .workers = 8}},
    .incidents = {{.unix_ms = 1'700'000'000'123, .round = 1, .text = "it died"}}};

CtlOptions options(CtlCommand command, bool json = false) {
  return {.command = command, .endpoints = {{"h", 1}}, .json = json, .question = {}};
}

TEST(CtlOutput, ATableOfJobs) {
  EXPECT_EQ(output(options(CtlCommand::kJobs), {.jobs = {kJob}}),
            "JOB    PHASE    ROUND  NODES  WANTED  RESTARTS  WHY\n"
            "train  running  2      1      1:4     1/3       \n");
}

TEST(CtlOutput, JobsOfThisHostHaveAPidAndAFolder) {
  rendezvous::JobSnapshot job = kJob;
  job.pid = 4711;
  job.log_folder = "/logs/train_x";
  CtlOptions here = options(CtlCommand::kJobs);
  here.endpoints.clear();
  EXPECT_EQ(output(here, {.jobs = {job}}),
            "PID   JOB    PHASE    ROUND  NODES  RESTARTS  LOGS\n"
            "4711  train  running  2      1:4    1/3       /logs/train_x\n");
  here.command = CtlCommand::kStatus;
  EXPECT_NE(output(here, {.jobs = {job}}).find("\npid: 4711\nlogs: /logs/train_x\n"),
            std::string::npos);
  EXPECT_EQ(error_text(here, {ControlOutcome::kUnreachable, "no"}), "this host: no");
}

TEST(CtlOutput, JsonHasEachStack) {
  CtlOptions here = options(CtlCommand::kStacks, true);
  here.question.verb = rendezvous::ShowStacks{};
  const auto json = nlohmann::json::parse(
      output(here, {.jobs = {kJob}, .stacks = {{.rank = 3, .frames = {{"f", "/a.py", 7}}}}}));
  EXPECT_EQ(json["stacks"][0]["rank"], 3);
  EXPECT_EQ(json["stacks"][0]["frames"][0]["line"], 7);
  EXPECT_FALSE(json["jobs"][0].contains("pid"));
}

TEST(CtlOutput, AStatusHasNodesAndIncidents) {
  rendezvous::JobSnapshot job = kJob;
  job.nodes[1].strikes = 2.5;
  job.nodes[1].sits_out_s = 60;
  EXPECT_EQ(output(options(CtlCommand::kStatus), {.jobs = {job}}),
            "train: running, round 2, 1 of 1:4 nodes, 1 of 3 restarts spent\n"
            "\n"
            "RANK  HOSTNAME       STATE    WORKERS  ROLE     STRIKES            ID\n"
            "0     n0 [2J (host)  running  8        default  -                  n0-1\n"
            "-     n1             spare    8        default  2.5, out for 60 s  n1-1\n"
            "\n"
            "TIME                      ROUND  KIND     RE-FORMED  WHAT\n"
            "2023-11-14T22:13:20.123Z  1      failure  -          it died\n");
}

TEST(CtlOutput, ShowsNothingThatATerminalObeys) {
  rendezvous::JobSnapshot job = kJob;
  job.job = "a\nb\u009b2J";
  job.nodes[0].role = "r\u202e\x9b";
  job.waits_for = "x\x1b[2J\u2028y";
  job.incidents[0].text = "z\r\nTIME \x7f";
  for (const CtlCommand command : {CtlCommand::kJobs, CtlCommand::kStatus, CtlCommand::kNodes}) {
    for (const bool json : {false, true}) {
      const std::string text = output(options(command, json), {.text = "t\u009b", .jobs = {job}});
      for (const char* unwanted : {"\x1b", "\r", "\u009b", "\u202e", "\u2028", "\x7f", "a\nb"})
        EXPECT_EQ(text.find(unwanted), std::string::npos) << text;
    }
  }
  EXPECT_EQ(error_text(options(CtlCommand::kDrain), {ControlOutcome::kRefused, "no\nyes\u009b"}),
            "no yes ");
}

TEST(CtlOutput, JsonHasAllOfIt) {
  const auto json =
      nlohmann::json::parse(output(options(CtlCommand::kStatus, true), {.jobs = {kJob}}));
  EXPECT_EQ(json["outcome"], "done");
  EXPECT_EQ(json["jobs"][0]["phase"], "running");
  EXPECT_EQ(json["jobs"][0]["nodes"][0]["state"], "running");
  EXPECT_TRUE(json["jobs"][0]["nodes"][1]["node_rank"].is_null());
  EXPECT_EQ(json["jobs"][0]["incidents"][0]["time"], "2023-11-14T22:13:20.123Z");
}

TEST(CtlOutput, ExitCodesAndErrors) {
  const auto code = [](ControlOutcome outcome) { return exit_code({outcome}); };
  EXPECT_EQ(code(ControlOutcome::kDone), 0);
  EXPECT_EQ(code(ControlOutcome::kJobFailed), 1);
  EXPECT_EQ(code(ControlOutcome::kRefused), 1);
  EXPECT_EQ(code(ControlOutcome::kUnreachable), 3);
  EXPECT_EQ(code(ControlOutcome::kUnknown), 4);
  EXPECT_EQ(code(ControlOutcome::kWrongToken), 5);
  // Somebody answered, so asking again, as after a 3, is of no use.
  EXPECT_EQ(code(ControlOutcome::kTls), 1);
  EXPECT_EQ(code(ControlOutcome::kNoTls), 1);
  EXPECT_EQ(error_text(options(CtlCommand::kJobs), {ControlOutcome::kTls, "it wants TLS"}),
            "h:1: it wants TLS");
  // The outcome decides on the advice, and no text of a peer does.
  EXPECT_EQ(error_text(options(CtlCommand::kJobs), {ControlOutcome::kNoTls, "it has none (x)"}),
            "h:1: it has none (x): leave out --tls-ca, --tls-cert and --tls-key");
  EXPECT_EQ(
      error_text(options(CtlCommand::kJobs), {ControlOutcome::kTls, "it does not take TLS (x)"}),
      "h:1: it does not take TLS (x)");
  const ControlAnswer refused{ControlOutcome::kRefused, "no"};
  EXPECT_EQ(output(options(CtlCommand::kDrain), refused), "");
  EXPECT_EQ(error_text(options(CtlCommand::kDrain), refused), "no");
  EXPECT_EQ(error_text(options(CtlCommand::kJobs), {ControlOutcome::kUnreachable, "nobody"}),
            "h:1: nobody");
  const auto json = nlohmann::json::parse(output(options(CtlCommand::kDrain, true), refused));
  EXPECT_EQ(json["outcome"], "refused");
  EXPECT_EQ(json["text"], "no");
}

}  // namespace
}  // namespace ddprun::daemon
