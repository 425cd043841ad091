// The record of a run, under PyTorch's keys.
#include "worker/reducer/log_record.h"

#include <gtest/gtest.h>
#include <torch/nn.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/worker/torch_ranks.h"
#include "worker/reducer/data_parallel.h"

namespace ddprun::worker {
namespace {

TEST(LogRecord, HasTheKeysOfPyTorch) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective, {.bucket_cap_bytes = 1});
    for (int pass = 0; pass < 3; ++pass) {
      parallel.forward(net, torch::ones({4})).sum().backward();
    }
    const auto object = nlohmann::json::parse(parallel.log_record().to_json());
    // torch/csrc/distributed/c10d/logger.cpp and c10/util/Logging.h, 2.11.
    for (const char* key : {"module_name",
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
                            "error"}) {
      EXPECT_TRUE(object.contains(key)) << key;
    }
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

}  // namespace
}  // namespace ddprun::worker
