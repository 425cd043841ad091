#include "examples/common/flags.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ddprun::examples {
namespace {

struct Values {
  std::filesystem::path data, checkpoint;
  int epochs = 5;
  double lr = 0.05;
  std::uint64_t seed = 1;
  std::string progress = "auto";
  bool resume = false;
};

struct Parsed {
  explicit Parsed(const std::vector<std::string>& arguments) : flags("Trains.") {
    flags.path("--data", values.data, "folder", "where the data is");
    flags.path("--checkpoint", values.checkpoint, "file", "where to save");
    flags.count("--epochs", values.epochs, "passes over the data (5)");
    flags.rate("--lr", values.lr, "learning rate (0.05)");
    flags.seed("--seed", values.seed, "of the weights (1)");
    flags.word("--progress", values.progress, {"auto", "always", "never"}, "how steps are shown");
    flags.on("--resume", values.resume, "go on");
    const auto taken = flags.parse(arguments);
    error = taken ? "no error" : taken.error().message();
  }
  Values values;
  Flags flags;
  std::string error;
};

std::string error_of(const std::vector<std::string>& arguments) { return Parsed(arguments).error; }

TEST(Flags, LeaveTheDefaultsOfWhatIsNotGiven) {
  const Parsed parsed({});
  EXPECT_EQ(parsed.error, "no error");
  EXPECT_EQ(parsed.values.epochs, 5);
  EXPECT_EQ(parsed.values.lr, 0.05);
  EXPECT_EQ(parsed.values.progress, "auto");
  EXPECT_FALSE(parsed.flags.asks_for_help());
}

TEST(Flags, TakeValuesInBothSpellings) {
  const Parsed parsed({"--data", "/digits", "--epochs=7", "--lr=1e-3", "--seed",
                       "18446744073709551615", "--checkpoint=a=b.pt", "--resume", "--progress",
                       "never"});
  EXPECT_EQ(parsed.error, "no error");
  EXPECT_EQ(parsed.values.data, "/digits");
  EXPECT_EQ(parsed.values.epochs, 7);
  EXPECT_EQ(parsed.values.lr, 1e-3);
  EXPECT_EQ(parsed.values.seed, 18446744073709551615U);
  EXPECT_EQ(parsed.values.checkpoint, "a=b.pt");
  EXPECT_TRUE(parsed.values.resume);
  EXPECT_EQ(parsed.values.progress, "never");
}

TEST(Flags, LetTheLastOfARepeatedFlagCount) {
  EXPECT_EQ(Parsed({"--epochs=7", "--epochs=2"}).values.epochs, 2);
}

TEST(Flags, RefuseWhatIsNoNumberInRange) {
  EXPECT_EQ(error_of({"--epochs=zero"}),
            "--epochs: 'zero' given, expected a whole number from 1 to 100000");
  for (const char* value : {"0", "-1", "100001", "5x", " 5", "", "1e3", "99999999999999999999"}) {
    EXPECT_TRUE(error_of({"--epochs", value}).starts_with("--epochs: '")) << value;
  }
  EXPECT_EQ(Parsed({"--epochs=100000"}).values.epochs, kMaxCount);
  for (const char* value : {"0", "-0.1", "nan", "inf", "1e999", "0.1.2", ""}) {
    EXPECT_TRUE(error_of({"--lr", value}).starts_with("--lr: '")) << value;
  }
  for (const char* value : {"-1", "18446744073709551616", "1.5", ""}) {
    EXPECT_TRUE(error_of({"--seed", value}).starts_with("--seed: '")) << value;
  }
}

TEST(Flags, RefuseWhatTheyDoNotKnow) {
  EXPECT_EQ(error_of({"--epoch=3"}), "--epoch: unknown argument; --help lists all");
  EXPECT_EQ(error_of({"train"}), "train: unknown argument; --help lists all");
  EXPECT_EQ(error_of({"--progress=maybe"}),
            "--progress: 'maybe' given, expected auto, always or never");
}

TEST(Flags, RefuseAMissingOrNeedlessValue) {
  EXPECT_EQ(error_of({"--data"}), "--data: no value given, expected a folder");
  EXPECT_EQ(error_of({"--data="}), "--data: '' given, expected a folder");
  EXPECT_EQ(error_of({"--resume=yes"}), "--resume: takes no value, got 'yes'");
}

TEST(Flags, ExplainThemselves) {
  const Parsed parsed({"--help"});
  EXPECT_TRUE(parsed.flags.asks_for_help());
  for (const char* flag : {"--data DIR", "--epochs N", "--lr RATE", "--seed N", "--checkpoint FILE",
                           "--resume", "--progress WORD", "--help"}) {
    EXPECT_NE(parsed.flags.help_text().find(flag), std::string::npos) << flag;
  }
}

}  // namespace
}  // namespace ddprun::examples
