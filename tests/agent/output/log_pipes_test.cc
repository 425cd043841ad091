// The streams that pass through the agent: real files and pipes, no processes.
#include "agent/output/log_pipes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "agent/output/passthrough_sink.h"
#include "agent/output/tee_sink.h"
#include "base/log.h"
#include "tests/agent/output/console_fixture.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

class LogPipesTest : public ConsoleTest {
 protected:
  // A tee'd stream as WorkerFiles makes it; its write end does not block.
  FileHandle open_tee(LineSource source) {
    const std::string name = "stdout" + std::to_string(source.rank) + ".log";
    return unblocked(
        pipes.open(std::make_unique<TeeSink>(new_file(name), std::move(source), *lines)));
  }
  FileHandle open_through(std::shared_ptr<StderrTail> tail) {
    return unblocked(pipes.open(std::make_unique<PassthroughSink>(console, std::move(tail))));
  }
  static FileHandle unblocked(Result<FileHandle> writer) {
    EXPECT_TRUE(writer.has_value());
    EXPECT_EQ(::fcntl(writer->get(), F_SETFL, O_NONBLOCK), 0);
    return std::move(*writer);
  }

  // Writes all of `text`, running the loop and reading the lines where nothing else can move.
  void say(const FileHandle& writer, std::string_view text) {
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (!text.empty() && std::chrono::steady_clock::now() < deadline) {
      const ssize_t wrote = ::write(writer.get(), text.data(), text.size());
      if (wrote > 0) text.remove_prefix(static_cast<std::size_t>(wrote));
      poll();
      terminal.read();
    }
    ASSERT_TRUE(text.empty());
  }
  std::unique_ptr<TeeConsole> lines =
      std::make_unique<TeeConsole>(console, LineFormat(), FileHandle());
  LogPipes pipes{loop};
};

TEST_F(LogPipesTest, TeeWritesEveryByteToTheFileAndPrefixedLinesToTheConsole) {
  FileHandle writer = open_tee({.prefix = "[r0]:"});
  ASSERT_EQ(::write(writer.get(), "a\0b\nlast", 8), 8);
  poll();
  EXPECT_EQ(terminal.read(), std::string("[r0]:a\0b\n", 9));
  writer.close();
  pipes.drain();
  flush(loop, console);
  EXPECT_EQ(content(folder / "stdout0.log"), std::string("a\0b\nlast", 8));
  EXPECT_EQ(terminal.read(), std::string("[r0]:a\0b\n[r0]:last\n", 19));
}

TEST_F(LogPipesTest, AFullDiskIsWarnedOfOnceAndTheConsoleHasTheText) {
  std::string warnings;
  log::set_writer([&](std::string_view line) { warnings += line; });
  const FileHandle writer = unblocked(pipes.open(std::make_unique<TeeSink>(
      FileHandle(::open("/dev/full", O_WRONLY | O_CLOEXEC)), LineSource{}, *lines)));
  say(writer, "one\n");
  say(writer, "two\n");
  log::set_writer(nullptr);
  EXPECT_EQ(terminal.read(), "one\ntwo\n");
  EXPECT_NE(warnings.find("write /dev/full: No space left on device;"), std::string::npos);
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
}

// A worker that writes more than all buffers hold. Its lines are read only when nothing else can
// move.
TEST_F(LogPipesTest, NothingIsLostWhenTheConsoleIsSlow) {
  constexpr int kLines = 400'000;  // some 2.7 MB: pipes and backlog together hold half of it
  std::string expected;
  for (int line = 0; line < kLines; ++line) expected += std::to_string(line) + "\n";
  FileHandle writer = open_tee({});
  std::size_t sent = 0;
  bool held_back = false;
  const auto deadline = std::chrono::steady_clock::now() + 120s;
  std::size_t shown = 0;
  while (shown < expected.size() && std::chrono::steady_clock::now() < deadline) {
    const ssize_t wrote = ::write(writer.get(), expected.data() + sent, expected.size() - sent);
    if (wrote > 0) sent += static_cast<std::size_t>(wrote);
    if (sent == expected.size()) writer.close();
    poll();
    if (wrote > 0) continue;
    held_back = held_back || sent < expected.size();
    shown = terminal.read().size();
  }
  EXPECT_TRUE(held_back);
  EXPECT_TRUE(terminal.read() == expected) << shown << " of " << expected.size() << " bytes";
  EXPECT_TRUE(content(folder / "stdout0.log") == expected);
}

TEST_F(LogPipesTest, ALineOfManyMegabytesIsNotTornByOtherRanks) {
  const FileHandle big = open_tee({.rank = 0, .prefix = "[0]:"});
  FileHandle small = open_tee({.rank = 1, .prefix = "[1]:"});
  const std::string line(8'000'000, 'x');
  say(small, "before\n");
  for (std::size_t part = 0; part < 8; ++part) {
    say(big, std::string_view(line).substr(part * 1'000'000, 1'000'000));
    say(small, "meanwhile\n");
  }
  say(big, "\n");
  await_shown("meanwhile\n");
  small.close();
  pipes.drain();
  flush(loop, console);
  std::string after;
  for (int part = 0; part < 8; ++part) after += "[1]:meanwhile\n";
  EXPECT_TRUE(terminal.read() == "[1]:before\n[0]:" + line + "\n" + after);
  EXPECT_TRUE(content(folder / "stdout0.log") == line + "\n");
}

TEST_F(LogPipesTest, AStreamThatStallsInTheMiddleOfALongLineGivesItsTurnUp) {
  const FileHandle big = open_tee({.rank = 0, .prefix = "[0]:"});
  const FileHandle small = open_tee({.rank = 1, .prefix = "[1]:"});
  const std::string line(kHeldLineBytes, 'x');
  const auto begin = std::chrono::steady_clock::now();
  const auto since = [begin] { return std::chrono::steady_clock::now() - begin; };
  say(big, line);
  await_shown("x");
  say(small, "waits\n");
  EXPECT_TRUE(terminal.read() == "[0]:" + line || since() >= kTurnStall);
  await_shown("\n[1]:waits\n");
  EXPECT_GE(since(), kTurnStall);
  say(big, "rest\n");
  await_shown("[0]:rest\n");
  EXPECT_TRUE(content(folder / "stdout0.log") == line + "rest\n");
}

TEST_F(LogPipesTest, DrainEndsALongLineBeforeItShowsOthers) {
  FileHandle small = open_tee({.rank = 1, .prefix = "[1]:"});
  FileHandle big = open_tee({.rank = 0, .prefix = "[0]:"});
  const std::string line(kHeldLineBytes, 'x');
  say(big, line);
  await_shown("x");
  ASSERT_EQ(::write(small.get(), "other\n", 6), 6);
  ASSERT_EQ(::write(big.get(), "end", 3), 3);
  small.close();
  big.close();
  pipes.drain();
  flush(loop, console);
  EXPECT_TRUE(terminal.read() == "[0]:" + line + "end\n[1]:other\n");
}

TEST_F(LogPipesTest, DrainDoesNotWaitForAProcessThatHoldsThePipe) {
  const FileHandle held_by_a_stuck_process = open_tee({.prefix = "[0]:"});
  ASSERT_EQ(::write(held_by_a_stuck_process.get(), "last words", 10), 10);
  pipes.drain();
  flush(loop, console);
  EXPECT_EQ(terminal.read(), "[0]:last words\n");
}

TEST_F(LogPipesTest, FoldedLinesAreShownWhenTheWindowHasPassedWithoutAnyFurtherOutput) {
  lines =
      std::make_unique<TeeConsole>(console, LineFormat{.fold = true, .streams = 3}, FileHandle());
  const FileHandle zero = open_tee({.rank = 0, .prefix = "[0]:"});
  const FileHandle one = open_tee({.rank = 1, .prefix = "[1]:"});
  const FileHandle two = open_tee({.rank = 2, .prefix = "[2]:"});
  // All of it is there when the loop looks: a pause between them would be longer than the window.
  ASSERT_EQ(::write(zero.get(), "same\n", 5), 5);
  ASSERT_EQ(::write(one.get(), "same\n", 5), 5);
  ASSERT_EQ(::write(two.get(), "other\n", 6), 6);
  const auto begin = std::chrono::steady_clock::now();
  poll();
  EXPECT_TRUE(terminal.read().empty() || std::chrono::steady_clock::now() - begin >= kFoldWindow);
  await_shown("[ranks 0-1] same\n[2]:other\n");
  EXPECT_EQ(content(folder / "stdout1.log"), "same\n");
  loop.restart();
  EXPECT_EQ(loop.poll(), 0U) << "nothing is due any more";
}

TEST_F(LogPipesTest, DrainShowsWhatFoldingHeldBack) {
  lines =
      std::make_unique<TeeConsole>(console, LineFormat{.fold = true, .streams = 2}, FileHandle());
  FileHandle zero = open_tee({.rank = 0, .prefix = "[0]:"});
  say(zero, "line\n");
  zero.close();
  pipes.drain();
  flush(loop, console);
  EXPECT_EQ(terminal.read(), "[0]:line\n");
}

TEST_F(LogPipesTest, FilteredLinesOfAllRanksAreInOneFile) {
  lines =
      std::make_unique<TeeConsole>(console, LineFormat{.filters{{"apple"}}}, new_file("filtered"));
  const FileHandle zero = open_tee({.rank = 0, .prefix = "[0]:"});
  const FileHandle one = open_tee({.rank = 1, .prefix = "[1]:"});
  say(zero, "an apple\na plum\n");
  say(one, "apples\n");
  EXPECT_EQ(content(folder / "filtered"), "[0]:an apple\n[1]:apples\n");
}

TEST_F(LogPipesTest, APassedOnStreamIsTheSameByteForByteAndItsEndIsKept) {
  const auto tail = std::make_shared<StderrTail>();
  FileHandle writer = open_through(tail);
  std::string expected = "\xFF no prefix\r\n";
  for (int line = 0; line < 100'000; ++line) expected += std::to_string(line) + "\n";
  expected += std::string(2 * kHeldLineBytes, 'x') + "\nlast words";
  say(writer, expected);
  writer.close();
  pipes.drain();
  await_shown("last words");
  EXPECT_TRUE(terminal.read() == expected);
  EXPECT_EQ(tail->lines().back(), "last words");
}

TEST_F(LogPipesTest, APassedOnPromptIsSeenWithoutItsNewline) {
  const FileHandle writer = open_through(std::make_shared<StderrTail>());
  say(writer, "line\n50%");
  EXPECT_EQ(terminal.read(), "line\n");
  await_shown("line\n50%");
}

}  // namespace
}  // namespace ddprun::agent
