// The record of a run, under PyTorch's keys.
#include <ddprun/data_parallel.h>
#include <ddprun/log_record.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/worker/streams_alone.h"
#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"
#include "worker/training/data_parallel/pass_times.h"

namespace ddprun::worker {
namespace {

// torch/csrc/distributed/c10d/logger.cpp of 2.11: those that Python's _get_ddp_logging_data() gave
// with Gloo, and those that a wheel with NCCL has beside them.
constexpr const char* kKeys[] = {"module_name",
                                 "world_size",
                                 "rank",
                                 "backend_name",
                                 "device_ids",
                                 "output_device",
                                 "broadcast_buffers",
                                 "has_sync_bn",
                                 "static_graph",
                                 "bucket_cap_bytes",
                                 "find_unused_parameters",
                                 "gradient_as_bucket_view",
                                 "num_parameter_tensors",
                                 "total_parameter_size_bytes",
                                 "dtypes",
                                 "bucket_sizes",
                                 "is_multi_device_module",
                                 "master_addr",
                                 "master_port",
                                 "cuda_visible_devices",
                                 "torch_distributed_debug",
                                 "nccl_socket_ifname",
                                 "nccl_blocking_wait",
                                 "nccl_async_error_handling",
                                 "nccl_debug",
                                 "nccl_nthreads",
                                 "nccl_ib_timeout",
                                 "gloo_socket_ifname",
                                 "gloo_device_transport",
                                 "gloo_num_threads",
                                 "can_set_static_graph",
                                 "iteration",
                                 "has_rebuilt_buckets",
                                 "rebuilt_bucket_sizes",
                                 "rebuilt_per_bucket_param_indices",
                                 "prev_iteration_grad_ready_order_indices",
                                 "num_buckets_reduced",
                                 "unused_parameter_size",
                                 "forward_compute_time",
                                 "backward_compute_time",
                                 "backward_comm_time",
                                 "backward_compute_comm_overlap_time",
                                 "avg_forward_compute_time",
                                 "avg_backward_compute_time",
                                 "avg_backward_comm_time",
                                 "avg_backward_compute_comm_overlap_time",
                                 "forward_compute_time_start",
                                 "backward_compute_time_start",
                                 "backward_compute_time_end",
                                 "backward_comm_time_start",
                                 "backward_comm_time_end",
                                 "comm_hook",
                                 "join_uneven_inputs",
                                 "has_error",
                                 "error"};

TEST(LogRecord, HasTheKeysOfPyTorch) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective, {.bucket_cap_bytes = 1});
    for (int pass = 0; pass < 3; ++pass) {
      parallel.forward(net, torch::ones({4})).sum().backward();
    }
    const auto object = nlohmann::json::parse(parallel.log_record().to_json());
    for (const char* key : kKeys) EXPECT_TRUE(object.contains(key)) << key;
    EXPECT_EQ(object["world_size"], 2);
    EXPECT_EQ(object["backend_name"], "shm");
    EXPECT_EQ(object["dtypes"], "float");
    EXPECT_EQ(object["num_parameter_tensors"], 3);
    EXPECT_EQ(object["total_parameter_size_bytes"], 48);
    EXPECT_EQ(object["bucket_sizes"], "48");
    EXPECT_EQ(object["rebuilt_bucket_sizes"], "16, 16, 16");
    EXPECT_EQ(object["rebuilt_per_bucket_param_indices"], "2, 1, 0");
    EXPECT_EQ(object["prev_iteration_grad_ready_order_indices"], "2, 1, 0");
    EXPECT_EQ(object["iteration"], 3);
    EXPECT_EQ(object["has_error"], 0);
  });
}

TEST(LogRecord, HasTheVariablesOfTheEnvironment) {
  run_torch_ranks(1, [](Collective& collective) {
    ::setenv("GLOO_SOCKET_IFNAME", "eth7", 1);
    ::setenv("NCCL_BLOCKING_WAIT", "1", 1);
    ::setenv("NCCL_ASYNC_ERROR_HANDLING", "2", 1);
    ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", 1);
    Chain net;
    auto texts = DataParallel(net.ptr(), collective).log_record().texts;
    EXPECT_EQ(texts["gloo_socket_ifname"], "eth7");
    EXPECT_EQ(texts["gloo_device_transport"], "N/A");
    EXPECT_EQ(texts["nccl_blocking_wait"], "1") << "the older name";
    EXPECT_EQ(texts["nccl_async_error_handling"], "3") << "the newer name comes first";
  });
}

TEST(LogRecord, SaysWhetherTheGraphWasStatic) {
  run_torch_ranks(1, [](Collective& collective) {
    const auto unchanged = [&](DataParallelOptions options, const std::vector<bool>& uses_rare) {
      Chain net;
      DataParallel parallel(net.ptr(), collective, options);
      for (const bool uses : uses_rare)
        parallel.forward(net, torch::ones({4}), uses).sum().backward();
      return parallel.log_record().numbers["can_set_static_graph"];
    };
    EXPECT_EQ(unchanged({}, {true, true}), 1);
    EXPECT_EQ(unchanged({.static_graph = true}, {false, false}), 1);
    EXPECT_EQ(unchanged({.find_unused_parameters = true}, {false, false, false}), 1);
    EXPECT_EQ(unchanged({.find_unused_parameters = true}, {true, true, false}), 0);
    EXPECT_EQ(unchanged({.find_unused_parameters = true}, {false, true, false}), 0);
  });
}

TEST(LogRecord, IsWrittenWholeOrNotAtAll) {
  run_torch_ranks(1, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    const auto folder =
        std::filesystem::temp_directory_path() / ("log_record_" + std::to_string(::getpid()));
    std::filesystem::create_directory(folder);
    const auto path = folder / "record.json";
    std::ofstream(path) << "of before";
    parallel.write_log_record(path);
    std::ifstream file(path);
    EXPECT_EQ(nlohmann::json::parse(file)["num_parameter_tensors"], 3);
    const std::string nowhere = folder / "none" / "record.json";
    EXPECT_EQ(message_of([&] { parallel.write_log_record(nowhere); }),
              "write log record " + nowhere + ": No such file or directory");
    // A folder cannot be replaced by a file; nothing is left beside it.
    EXPECT_NE(message_of([&] { parallel.write_log_record(folder); }), "");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
    EXPECT_FALSE(std::filesystem::exists(folder.string() + ".unfinished"));
    std::filesystem::remove_all(folder);
  });
}

TEST(LogRecord, HasTimesInTheirOrder) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    for (int pass = 0; pass < 3; ++pass) {
      parallel.forward(net, torch::ones({4})).sum().backward();
      auto numbers = parallel.log_record().numbers;
      EXPECT_LT(0, numbers["forward_compute_time_start"]);
      EXPECT_LT(numbers["forward_compute_time_start"], numbers["backward_compute_time_start"]);
      EXPECT_LT(numbers["backward_compute_time_start"], numbers["backward_comm_time_start"]);
      EXPECT_LE(numbers["backward_comm_time_start"], numbers["backward_compute_time_end"]);
      EXPECT_LE(numbers["backward_compute_time_end"], numbers["backward_comm_time_end"]);
      EXPECT_LE(numbers["backward_compute_comm_overlap_time"], numbers["backward_comm_time"]);
      EXPECT_EQ(numbers["forward_compute_time"],
                numbers["backward_compute_time_start"] - numbers["forward_compute_time_start"]);
      EXPECT_GT(numbers["avg_backward_comm_time"], 0);
    }
  });
}

TEST(LogRecord, SaysWhatWentWrong) {
  run_torch_ranks(1, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    parallel.forward(net, torch::ones({4}), /*with_rare=*/false).sum().backward();
    auto record = parallel.log_record();
    EXPECT_EQ(record.numbers["has_error"], 1);
    EXPECT_NE(record.texts["error"].find("'rare'"), std::string::npos);
    EXPECT_THROW(parallel.check_reduced(), std::runtime_error);
  });
}

// The host launches all of a pass in no time; the device takes some milliseconds for each part.
class OnADevice : public ::testing::Test {
 protected:
  struct Ranks final : PassingCollective {
    explicit Ranks(Collective& inner) : PassingCollective(inner) {}
    bool is_capturing() const override { return captured; }
    bool captured = false;
  };

  void SetUp() override {
    StreamsAlone::launched_ms = StreamsAlone::reached_ms = 0;
    StreamsAlone::queries = 0;
  }

  void pass(double milliseconds = 1) {
    times_.begin_pass();
    for (const auto moment : {PassMoment::kBackwardBegins, PassMoment::kSumsBegin,
                              PassMoment::kBackwardEnds, PassMoment::kSumsEnd}) {
      StreamsAlone::launched_ms += milliseconds;
      times_.mark(moment);
    }
    times_.end_pass();
  }
  static void reach_all() { StreamsAlone::reached_ms = StreamsAlone::launched_ms; }
  std::int64_t number(const char* key) {
    LogRecord record;
    times_.write(record);
    return record.numbers[key];
  }

  const StreamsAlone& device_ = StreamsAlone::registered();
  std::unique_ptr<Collective> alone_ = make_alone_collective();
  Ranks ranks_{*alone_};
  PassTimes times_{{device_.type(), 0}, ranks_};
};

TEST_F(OnADevice, PassesTakeTheTimeOfTheDevice) {
  pass();
  EXPECT_EQ(number("forward_compute_time"), 0) << "the device has not come so far";
  reach_all();
  pass(5);
  EXPECT_EQ(number("forward_compute_time"), 1'000'000);
  EXPECT_EQ(number("backward_compute_time"), 2'000'000);
  EXPECT_EQ(number("backward_comm_time"), 2'000'000);
  EXPECT_EQ(number("backward_compute_comm_overlap_time"), 1'000'000);
  reach_all();
  EXPECT_EQ(number("forward_compute_time"), 5'000'000);
  EXPECT_EQ(number("avg_forward_compute_time"), 3'000'000);
  EXPECT_GT(number("forward_compute_time_start"), 0) << "by the clock of the host";
}

TEST_F(OnADevice, PassesDoNotAskTheDevice) {
  for (int i = 0; i < 30; ++i) pass();
  reach_all();
  for (int i = 0; i < 30; ++i) pass();
  EXPECT_EQ(StreamsAlone::queries, 0);
  EXPECT_EQ(number("avg_forward_compute_time"), 1'000'000);
  EXPECT_GT(StreamsAlone::queries, 0);
}

TEST_F(OnADevice, APassThatFailsIsNotRead) {
  times_.begin_pass();
  StreamsAlone::launched_ms += 7;
  times_.mark(PassMoment::kBackwardBegins);
  pass();
  reach_all();
  EXPECT_EQ(number("avg_forward_compute_time"), 1'000'000);
}

TEST_F(OnADevice, AShadowOfAJoinIsNotRead) {
  times_.begin_pass();
  for (const auto moment :
       {PassMoment::kSumsBegin, PassMoment::kBackwardEnds, PassMoment::kSumsEnd})
    times_.mark(moment);
  times_.end_pass();
  pass(3);
  reach_all();
  EXPECT_EQ(number("avg_forward_compute_time"), 3'000'000);
  PassTimes on_cpu({c10::kCPU}, ranks_);
  on_cpu.begin_pass();
  on_cpu.mark(PassMoment::kSumsEnd);
  on_cpu.end_pass();
  LogRecord record;
  on_cpu.write(record);
  EXPECT_EQ(record.numbers["forward_compute_time"], 0);
}

TEST_F(OnADevice, NothingIsAskedInACapture) {
  pass();
  reach_all();
  ranks_.captured = true;
  pass(20);
  EXPECT_EQ(number("forward_compute_time"), 0);
  EXPECT_EQ(StreamsAlone::queries, 0);
  ranks_.captured = false;
  reach_all();
  EXPECT_EQ(number("forward_compute_time"), 1'000'000);
  // It begins in the middle of a pass, whose events then have no time.
  times_.begin_pass();
  StreamsAlone::launched_ms += 50;
  ranks_.captured = true;
  times_.mark(PassMoment::kBackwardBegins);
  ranks_.captured = false;
  times_.mark(PassMoment::kSumsEnd);
  times_.end_pass();
  reach_all();
  EXPECT_EQ(number("forward_compute_time"), 1'000'000);
}

TEST_F(OnADevice, FewPassesAreMeasured) {
  for (int i = 0; i < 10; ++i) pass(i + 1);
  for (int i = 10; i < 99; ++i) pass(30);
  reach_all();
  EXPECT_EQ(number("forward_compute_time"), 10'000'000) << "the tenth";
  EXPECT_EQ(number("avg_forward_compute_time"), 5'500'000);
  pass(40);
  reach_all();
  EXPECT_EQ(number("forward_compute_time"), 40'000'000) << "the hundredth";
}

// Nobody asks for them, so the oldest ones go.
TEST_F(OnADevice, FewPassesAreKept) {
  for (int i = 0; i < 2001; ++i) pass(i < 10 ? 1 : 2);
  reach_all();
  EXPECT_EQ(number("avg_forward_compute_time"), 2'000'000);
}

}  // namespace
}  // namespace ddprun::worker
