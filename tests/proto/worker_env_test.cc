#include "proto/worker_env.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace ddprun {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

EnvLookup lookup_in(const Variables& variables) {
  return [&variables](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

Variables as_map(const WorkerEnv& env) {
  Variables variables;
  for (const auto& [name, value] : encode(env)) variables[name] = value;
  return variables;
}

WorkerEnv example() {
  return {.rank = 5,
          .local_rank = 1,
          .world_size = 8,
          .local_world_size = 4,
          .node_rank = 1,
          .node_count = 2,
          .role = "trainer",
          .role_rank = 3,
          .role_world_size = 6,
          .master_addr = "10.0.0.1",
          .master_port = 29500,
          .run_id = "job",
          .restart_count = 2,
          .max_restarts = 3,
          .use_agent_store = true,
          .error_file = "/logs/error.json",
          .job_cookie = "c0ffee"};
}

Result<std::optional<WorkerEnv>> decode_with(const std::string& name, const std::string& value) {
  Variables variables = as_map(example());
  variables[name] = value;
  return decode_worker_env(lookup_in(variables));
}

TEST(WorkerEnv, SurvivesARoundTrip) {
  const auto decoded = decode_worker_env(lookup_in(as_map(example())));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message();
  EXPECT_EQ(**decoded, example());
}

TEST(WorkerEnv, HasTorchrunsNames) {
  const Variables variables = as_map(example());
  EXPECT_EQ(variables.at("RANK"), "5");
  EXPECT_EQ(variables.at("LOCAL_RANK"), "1");
  EXPECT_EQ(variables.at("WORLD_SIZE"), "8");
  EXPECT_EQ(variables.at("LOCAL_WORLD_SIZE"), "4");
  EXPECT_EQ(variables.at("GROUP_RANK"), "1");
  EXPECT_EQ(variables.at("GROUP_WORLD_SIZE"), "2");
  EXPECT_EQ(variables.at("ROLE_NAME"), "trainer");
  EXPECT_EQ(variables.at("ROLE_RANK"), "3");
  EXPECT_EQ(variables.at("ROLE_WORLD_SIZE"), "6");
  EXPECT_EQ(variables.at("MASTER_ADDR"), "10.0.0.1");
  EXPECT_EQ(variables.at("MASTER_PORT"), "29500");
  EXPECT_EQ(variables.at("TORCHELASTIC_RUN_ID"), "job");
  EXPECT_EQ(variables.at("TORCHELASTIC_RESTART_COUNT"), "2");
  EXPECT_EQ(variables.at("TORCHELASTIC_MAX_RESTARTS"), "3");
  EXPECT_EQ(variables.at("TORCHELASTIC_USE_AGENT_STORE"),
            "True");  // PyTorch compares this very string
  EXPECT_EQ(variables.at("TORCHELASTIC_ERROR_FILE"), "/logs/error.json");
  EXPECT_EQ(variables.size(), encode(example()).size()) << "a name stands twice";
}

TEST(WorkerEnv, AProgramStartedByHandIsAWorldOfOne) {
  const auto decoded = decode_worker_env(lookup_in({}));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_FALSE(decoded->has_value());
}

TEST(WorkerEnv, WhatOtherLaunchersLeaveOutHasDefaults) {
  const Variables variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}};
  const auto decoded = decode_worker_env(lookup_in(variables));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message();
  EXPECT_FALSE((*decoded)->use_agent_store);
  EXPECT_EQ((*decoded)->role, "default");
}

TEST(WorkerEnv, NamesWhatIsMissing) {
  Variables variables = as_map(example());
  variables.erase("MASTER_PORT");
  const auto decoded = decode_worker_env(lookup_in(variables));
  ASSERT_FALSE(decoded.has_value());
  EXPECT_EQ(decoded.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(decoded.error().message().find("MASTER_PORT is not set"), 0U);
}

TEST(WorkerEnv, RefusesBadValuesByNameAndValue) {
  const std::pair<std::string, std::string> bad[] = {{"RANK", "-1"},
                                                     {"RANK", "x"},
                                                     {"RANK", ""},
                                                     {"RANK", "8"},
                                                     {"RANK", "1 "},
                                                     {"WORLD_SIZE", "0"},
                                                     {"MASTER_PORT", "65536"},
                                                     {"LOCAL_WORLD_SIZE", "9"},
                                                     {"LOCAL_WORLD_SIZE", "0"},
                                                     {"WORLD_SIZE", "99999999999"}};
  for (const auto& [name, value] : bad) {
    const auto decoded = decode_with(name, value);
    ASSERT_FALSE(decoded.has_value()) << name << "=" << value;
    EXPECT_EQ(decoded.error().code(), ErrorCode::kInvalidArgument);
    const std::string message = decoded.error().message();
    EXPECT_NE(message.find(fmt::format("{}={}", name, value)), std::string::npos) << message;
  }
}

TEST(WorkerEnv, OnlyPythonsTrueMeansThatAStoreIsThere) {
  EXPECT_FALSE((*decode_with("TORCHELASTIC_USE_AGENT_STORE", "true"))->use_agent_store);
  EXPECT_FALSE((*decode_with("TORCHELASTIC_USE_AGENT_STORE", "1"))->use_agent_store);
}

}  // namespace
}  // namespace ddprun
