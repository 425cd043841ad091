#include "examples/mnist/options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ddprun::examples {
namespace {

std::string error_of(const std::vector<std::string>& arguments) {
  const auto options = parse_options(arguments);
  return options ? "no error" : options.error().message();
}

TEST(MnistOptions, HaveDefaultsThatTrain) {
  const auto options = parse_options({});
  ASSERT_TRUE(options);
  EXPECT_EQ(options->epochs, 5);
  EXPECT_EQ(options->batch_size, 32);
  EXPECT_EQ(options->lr, 0.05);
  EXPECT_EQ(options->seed, 1U);
  EXPECT_TRUE(options->data.empty());
  EXPECT_TRUE(options->checkpoint.empty());
  EXPECT_FALSE(options->resume);
  EXPECT_EQ(options->progress, ProgressMode::kAuto);
}

TEST(MnistOptions, TakeValuesInBothSpellings) {
  const auto options = parse_options({"--data", "/digits", "--epochs=7", "--batch-size", "1",
                                      "--lr=1e-3", "--seed", "18446744073709551615",
                                      "--checkpoint=a=b.pt", "--resume", "--progress", "never"});
  ASSERT_TRUE(options) << options.error().message();
  EXPECT_EQ(options->data, "/digits");
  EXPECT_EQ(options->epochs, 7);
  EXPECT_EQ(options->batch_size, 1);
  EXPECT_EQ(options->lr, 1e-3);
  EXPECT_EQ(options->seed, 18446744073709551615U);
  EXPECT_EQ(options->checkpoint, "a=b.pt");
  EXPECT_TRUE(options->resume);
  EXPECT_EQ(options->progress, ProgressMode::kNever);
}

TEST(MnistOptions, LetTheLastOfARepeatedFlagCount) {
  EXPECT_EQ(parse_options({"--epochs=7", "--epochs=2"})->epochs, 2);
}

TEST(MnistOptions, RefuseWhatIsNoNumberInRange) {
  EXPECT_EQ(error_of({"--epochs=zero"}),
            "--epochs: 'zero' given, expected a whole number from 1 to 100000");
  for (const char* value : {"0", "-1", "100001", "5x", " 5", "", "1e3", "99999999999999999999"}) {
    EXPECT_TRUE(error_of({"--epochs", value}).starts_with("--epochs: '")) << value;
    EXPECT_TRUE(error_of({"--batch-size", value}).starts_with("--batch-size: '")) << value;
  }
  EXPECT_EQ(parse_options({"--epochs=100000"})->epochs, kMaxEpochs);
  EXPECT_EQ(parse_options({"--batch-size=100000"})->batch_size, kMaxBatchSize);
  for (const char* value : {"0", "-0.1", "nan", "inf", "1e999", "0.1.2", ""}) {
    EXPECT_TRUE(error_of({"--lr", value}).starts_with("--lr: '")) << value;
  }
  for (const char* value : {"-1", "18446744073709551616", "1.5", ""}) {
    EXPECT_TRUE(error_of({"--seed", value}).starts_with("--seed: '")) << value;
  }
}

TEST(MnistOptions, RefuseWhatTheyDoNotKnow) {
  EXPECT_EQ(error_of({"--epoch=3"}), "--epoch: unknown argument; --help lists all");
  EXPECT_EQ(error_of({"train"}), "train: unknown argument; --help lists all");
  EXPECT_EQ(error_of({"--progress=maybe"}),
            "--progress: 'maybe' given, expected auto, always or never");
}

TEST(MnistOptions, RefuseAMissingOrNeedlessValue) {
  EXPECT_EQ(error_of({"--data"}), "--data: no value given, expected a folder");
  EXPECT_EQ(error_of({"--data="}), "--data: '' given, expected a folder");
  EXPECT_EQ(error_of({"--resume=yes", "--checkpoint=x"}), "--resume: takes no value, got 'yes'");
}

TEST(MnistOptions, RefuseToResumeFromNothing) {
  EXPECT_EQ(error_of({"--resume"}), "--resume: needs --checkpoint FILE");
}

TEST(MnistOptions, ExplainEveryFlag) {
  EXPECT_TRUE(parse_options({"--help"})->help);
  for (const char* flag : {"--data DIR", "--epochs N", "--batch-size N", "--lr RATE", "--seed N",
                           "--checkpoint FILE", "--resume", "--progress WHEN", "--help"}) {
    EXPECT_NE(help_text().find(flag), std::string::npos) << flag;
  }
}

}  // namespace
}  // namespace ddprun::examples
