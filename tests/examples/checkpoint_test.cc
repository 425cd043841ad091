#include "examples/mnist/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/examples/temporary_folder.h"

namespace ddprun::examples {
namespace {

// A net with a buffer besides its parameters, and an optimizer with momentum.
struct TrainingRun {
  explicit TrainingRun(std::uint64_t seed, std::int64_t width = 3) {
    torch::manual_seed(seed);
    net->push_back(torch::nn::Linear(2, width));
    net->push_back(torch::nn::BatchNorm1d(width));
    optimizer = std::make_unique<torch::optim::SGD>(net->parameters(),
                                                    torch::optim::SGDOptions(0.1).momentum(0.9));
  }

  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer->zero_grad();
      net->forward(torch::tensor({{1.0F, 2.0F}, {3.0F, 5.0F + static_cast<float>(step)}}))
          .pow(2)
          .sum()
          .backward();
      optimizer->step();
    }
  }

  torch::nn::Sequential net;
  std::unique_ptr<torch::optim::SGD> optimizer;
};

class Checkpoint : public testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "state.pt"; }

  void save(const TrainingRun& run, int epoch) const {
    const auto saved = save_checkpoint(path(), *run.net, *run.optimizer, {epoch, "job 1"});
    ASSERT_TRUE(saved) << saved.error().message();
  }

  // The message of an error about the file, after its name.
  std::string error_of_loading(TrainingRun& run) const {
    const auto loaded = load_checkpoint(path(), *run.net, *run.optimizer);
    if (loaded) return "no error";
    const std::string prefix = "load checkpoint " + path().string() + ": ";
    EXPECT_TRUE(loaded.error().message().starts_with(prefix)) << loaded.error().message();
    EXPECT_EQ(loaded.error().message().find('\n'), std::string::npos) << "one line";
    return loaded.error().message().substr(prefix.size());
  }

  TemporaryFolder folder_;
};

TEST_F(Checkpoint, GoesOnAsIfNothingHadHappened) {
  TrainingRun undisturbed(1);
  undisturbed.train(3);
  save(undisturbed, 7);
  undisturbed.train(3);

  TrainingRun resumed(2);
  const auto loaded = load_checkpoint(path(), *resumed.net, *resumed.optimizer);
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_EQ(loaded->epoch, 7);
  resumed.train(3);
  EXPECT_EQ(checksum(*resumed.net), checksum(*undisturbed.net));
}

TEST_F(Checkpoint, NeedsTheMomentumForThat) {
  TrainingRun undisturbed(1);
  undisturbed.train(3);
  TrainingRun forgetful(1);
  forgetful.train(3);
  forgetful.optimizer->state().clear();
  undisturbed.train(3);
  forgetful.train(3);
  EXPECT_NE(checksum(*forgetful.net), checksum(*undisturbed.net))
      << "else the test above shows nothing of it";
}

TEST_F(Checkpoint, IsReplacedByTheNextOne) {
  TrainingRun run(1);
  save(run, 1);
  const auto first = load_checkpoint(path(), *run.net, *run.optimizer);
  const auto again = load_checkpoint(path(), *run.net, *run.optimizer);
  run.train(1);
  save(run, 2);
  const auto second = load_checkpoint(path(), *run.net, *run.optimizer);
  ASSERT_TRUE(first && again && second);
  EXPECT_EQ(first->fingerprint, again->fingerprint);
  EXPECT_NE(first->fingerprint, second->fingerprint);
  EXPECT_EQ(second->epoch, 2);
}

TEST_F(Checkpoint, RefusesAMissingFile) {
  TrainingRun run(1);
  EXPECT_EQ(error_of_loading(run), "No such file or directory");
  EXPECT_EQ(read_stamp(path()).error().code(), ErrorCode::kSystem);
}

TEST_F(Checkpoint, RefusesWhatIsNoFileWithoutWaitingForIt) {
  TrainingRun run(1);
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_NE(error_of_loading(run), "no error");
}

TEST_F(Checkpoint, ReadsNoMoreThanItsLimit) {
  TrainingRun run(1);
  write_bytes(path(), "");
  std::filesystem::resize_file(path(), kCheckpointBytesMax + 1);  // sparse
  EXPECT_EQ(error_of_loading(run), "268435457 bytes, at most 268435456 are read");
  EXPECT_EQ(read_stamp(path()).error().code(), ErrorCode::kLimit);
  std::filesystem::resize_file(path(), kCheckpointBytesMax);
  EXPECT_EQ(read_stamp(path()).error().code(), ErrorCode::kProtocol) << "read, and found wrong";
}

TEST_F(Checkpoint, TellsWhoSavedItAndWhen) {
  save(TrainingRun(1), 7);
  const auto stamp = read_stamp(path());
  ASSERT_TRUE(stamp) << stamp.error().message();
  EXPECT_EQ(stamp->epoch, 7);
  EXPECT_EQ(stamp->job, "job 1");
}

TEST_F(Checkpoint, RefusesAFileCutShortAnywhere) {
  TrainingRun run(1);
  save(run, 1);
  const std::string whole = read_bytes(path());
  for (std::size_t length = 0; length < whole.size(); length += 97) {
    write_bytes(path(), whole.substr(0, length));
    EXPECT_NE(error_of_loading(run), "no error") << length << " of " << whole.size() << " bytes";
  }
}

TEST_F(Checkpoint, RefusesWhatIsNoCheckpoint) {
  TrainingRun run(1);
  write_bytes(path(), std::string(5000, 'x'));
  EXPECT_NE(error_of_loading(run), "no error");
  torch::save(torch::ones(3), path().string());
  EXPECT_NE(error_of_loading(run), "no error") << "a file of LibTorch without our entries";
}

TEST_F(Checkpoint, RefusesTheStateOfAnotherNet) {
  save(TrainingRun(1, 3), 1);
  TrainingRun deeper(1);
  deeper.net->push_back(torch::nn::Linear(3, 1));
  EXPECT_NE(error_of_loading(deeper), "no error");
  TrainingRun wider(1, 4);
  EXPECT_EQ(error_of_loading(wider), "the weights of another net");
}

TEST(Checksum, SeesEveryBitOfParametersAndBuffers) {
  const TrainingRun one(1);
  const TrainingRun same(1);
  EXPECT_EQ(checksum(*one.net), checksum(*same.net));
  const torch::NoGradGuard no_gradients;
  for (torch::Tensor tensor : same.net->parameters()) {
    const auto before = checksum(*same.net);
    tensor.view(-1)[0] = std::nextafter(tensor.view(-1)[0].item<float>(), 9.0F);
    EXPECT_NE(checksum(*same.net), before);
  }
  for (torch::Tensor tensor : same.net->buffers()) {
    const auto before = checksum(*same.net);
    tensor.add_(1);
    EXPECT_NE(checksum(*same.net), before);
  }
}

}  // namespace
}  // namespace ddprun::examples
