#include "worker/collective/core/flight_record.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ddprun::worker {
namespace {

nlohmann::json record_of(const OperationRing& ring) {
  return nlohmann::json::parse(
      flight_record(ring, {.rank = 1, .ranks = 2, .timeout = std::chrono::seconds(600)}));
}

TEST(FlightRecord, NamesOperationsAsPyTorchDoes) {
  const auto ring = std::make_unique<OperationRing>();
  for (int kind = 0; kind <= static_cast<int>(kLastOperationKind); ++kind)
    ring->begin(static_cast<OperationKind>(kind), 8);
  std::vector<std::string> names;
  const auto record = record_of(*ring);
  for (const auto& entry : record["entries"])
    names.push_back(entry["profiling_name"].get<std::string>().substr(4));
  EXPECT_EQ(names, (std::vector<std::string>{"all_reduce", "all_reduce", "all_gather", "barrier",
                                             "broadcast", "send", "recv", "reduce_scatter",
                                             "all_gather", "all_to_all"}));
}

TEST(FlightRecord, HasPyTorchsKeys) {
  const auto ring = std::make_unique<OperationRing>();
  ring->end(ring->begin(OperationKind::kSum, 4096, Dtype::kFloat32, "bucket 3"));
  ring->begin(OperationKind::kReceive, 10, Dtype::kBFloat16);
  ring->begin(OperationKind::kBarrier, 0);
  const auto record = record_of(*ring);
  EXPECT_EQ(record["version"], "2.10");
  EXPECT_EQ(record["pg_config"]["0"]["ranks"], "[0,1]");
  EXPECT_EQ(record["pg_status"]["0"]["last_completed_collective"], 1);
  EXPECT_EQ(record["pg_status"]["0"]["last_started_collective"], 2);
  ASSERT_EQ(record["entries"].size(), 3U);
  const auto& sum = record["entries"][0];
  EXPECT_EQ(sum["profiling_name"], "shm:all_reduce");
  EXPECT_EQ(sum["name"], "bucket 3");
  EXPECT_EQ(sum["input_sizes"], nlohmann::json::parse("[[1024]]"));
  EXPECT_EQ(sum["input_dtypes"], nlohmann::json::parse(R"(["Float"])"));
  EXPECT_EQ(sum["state"], "completed");
  EXPECT_GE(sum["duration_ms"].get<double>(), 0);
  // The wall clock, whatever the time: after 2020, and not as long after it as 2100.
  EXPECT_GT(sum["time_created_ns"].get<std::int64_t>(), 1'577'000'000'000'000'000);
  EXPECT_LT(sum["time_created_ns"].get<std::int64_t>(), 4'102'000'000'000'000'000);
  const auto& receive = record["entries"][1];
  EXPECT_EQ(receive["is_p2p"], true);
  EXPECT_EQ(receive["p2p_seq_id"], 1);
  EXPECT_EQ(receive["state"], "started");
  EXPECT_EQ(receive["time_discovered_completed_ns"], 0);
  EXPECT_FALSE(receive.contains("duration_ms"));
  EXPECT_EQ(record["entries"][2]["collective_seq_id"], 2);
  EXPECT_EQ(record["entries"][2]["timeout_ms"], 600'000);
}

TEST(FlightRecord, IsJsonWhateverANameHas) {
  const auto ring = std::make_unique<OperationRing>();
  ring->begin(OperationKind::kSum, 8, Dtype::kFloat32, "\xff \"loss\"");
  EXPECT_EQ(record_of(*ring)["entries"][0]["name"], "\xEF\xBF\xBD \"loss\"");
}

TEST(FlightRecord, HasTheLastOnesInOrder) {
  const auto ring = std::make_unique<OperationRing>();
  EXPECT_EQ(record_of(*ring)["entries"].size(), 0U);
  for (std::uint32_t i = 0; i < OperationRing::kLength + 5; ++i)
    ring->begin(OperationKind::kGather, 8);
  const auto entries = record_of(*ring)["entries"];
  ASSERT_EQ(entries.size(), OperationRing::kLength);
  EXPECT_EQ(entries.front()["op_id"], 6);
  EXPECT_EQ(entries.back()["op_id"], OperationRing::kLength + 5);
}

}  // namespace
}  // namespace ddprun::worker
