#include "worker/startup/gpu_choice.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "worker/collective/core/exchange.h"
#include "worker/startup/gpu_files.h"

namespace ddprun::worker {
namespace {

struct Choice {
  GpuQuestion question;
  std::optional<int> gpu;  // nothing: an error
};

TEST(GpuChoice, TheProgramsWordComesFirstThenTheOnlyOneThenTheLocalRank) {
  const std::vector<Choice> choices{
      {{.local_rank = 0, .visible = 8}, 0},
      {{.local_rank = 7, .visible = 8}, 7},
      {{.local_rank = 8, .visible = 8}, std::nullopt},
      // One GPU is shown to each rank: `srun --gpus-per-task=1`, a container each.
      {{.local_rank = 0, .visible = 1}, 0},
      {{.local_rank = 3, .visible = 1}, 0},
      {{.local_rank = 0, .visible = 0}, std::nullopt},
      {{.local_rank = 1, .asked = 5, .visible = 8}, 5},
      {{.local_rank = 1, .asked = 0, .visible = 1}, 0},
      {{.local_rank = 1, .asked = 1, .visible = 1}, std::nullopt},
      {{.local_rank = 1, .asked = -1, .visible = 8}, std::nullopt},
      {{.local_rank = 1, .asked = 8, .visible = 8}, std::nullopt},
  };
  for (const auto& [question, gpu] : choices) {
    const auto chosen = choose_gpu(question);
    EXPECT_EQ(chosen ? std::optional(*chosen) : std::nullopt, gpu)
        << question.local_rank << " of " << question.visible;
  }
}

TEST(GpuChoice, SaysWhyThereIsNone) {
  EXPECT_EQ(choose_gpu({.local_rank = 2, .visible = 2}).error().message(),
            "no GPU is left for local rank 2: this process sees 2 GPUs");
  EXPECT_EQ(choose_gpu({.local_rank = 0, .asked = 4, .visible = 2}).error().message(),
            "gpu=4: expected a number from 0 on below the 2 GPUs that this process sees");
}

TEST(GpuChoice, AClaimIsReadAsItWasWritten) {
  for (const DeviceClaim& claim :
       {DeviceClaim{.host = "n1", .gpu = "a0"}, DeviceClaim{.host = "n1", .why = "no driver"}}) {
    const DeviceClaim read = decode_claim(encode(claim));
    EXPECT_EQ(read.host, claim.host);
    EXPECT_EQ(read.gpu, claim.gpu);
    EXPECT_EQ(read.why, claim.why);
  }
  const std::string long_text =
      encode({.host = "n1", .why = std::string(Exchange::kTextBytesMax, 'x')});
  EXPECT_EQ(long_text.size(), Exchange::kTextBytesMax);
  EXPECT_EQ(decode_claim(long_text).host, "n1");
  for (const char* other : {"", "n1", "n1\n"}) {
    EXPECT_TRUE(decode_claim(other).gpu.empty());
    EXPECT_FALSE(decode_claim(other).why.empty());
  }
}

TEST(GpuChoice, EachRankMustHaveAGpuOfItsOwn) {
  using Claims = std::vector<DeviceClaim>;
  const DeviceClaim first{.host = "n1", .gpu = "a"};
  const DeviceClaim second{.host = "n1", .gpu = "b"};
  const DeviceClaim none{.host = "n2", .why = "no GPU: CUDA finds none"};
  EXPECT_EQ(why_no_gpus(Claims{first}), "");
  EXPECT_EQ(why_no_gpus(Claims{first, second}), "");
  // NCCL takes ranks with an NCCL_HOSTID each for ranks of two hosts.
  EXPECT_EQ(why_no_gpus(Claims{first, {.host = "n2", .gpu = "a"}}), "");
  EXPECT_EQ(why_no_gpus(Claims{none}), none.why);
  EXPECT_EQ(why_no_gpus(Claims{first, second, none}), "rank 2: no GPU: CUDA finds none");
  const std::string shared = why_no_gpus(Claims{first, second, first});
  EXPECT_NE(shared.find("ranks 0 and 2 of host n1 have the same GPU (a)"), std::string::npos)
      << shared;
}

TEST(GpuFiles, AnOpenFileOfTheDriverIsFound) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "gpu_files";
  fs::remove_all(folder);
  fs::create_directories(folder);
  EXPECT_EQ(open_gpu_file(folder / "absent"), "");
  fs::create_symlink("/dev/null", folder / "0");
  EXPECT_EQ(open_gpu_file(folder), "");
  fs::create_symlink("/dev/nvidiactl", folder / "1");
  EXPECT_EQ(open_gpu_file(folder), "/dev/nvidiactl");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace ddprun::worker
