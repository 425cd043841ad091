// The launcher's stdout and stderr, and readers that are slow, stall or are gone.
#include "agent/output/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "agent/output/log_pipes.h"
#include "base/log.h"
#include "tests/agent/output/console_fixture.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

TEST_F(ConsoleTest, AConsoleThatNobodyReadsDropsTextInsteadOfFailing) {
  ::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  const FileHandle writer(ends[1]);
  Console unread(loop, writer.get());
  unread.write("text\n");
  poll();
  flush(loop, unread);
  EXPECT_FALSE(unread.full());
  ::signal(SIGPIPE, SIG_DFL);
}

// Far longer than a flush() that waits for nobody takes on a busy machine.
constexpr std::chrono::milliseconds kPatient{60'000};

// The bytes that a line in `text` says were dropped; none without one. The text may have megabytes:
// a regular expression would need many seconds for it under a sanitizer.
std::optional<std::size_t> told_dropped(const std::string& text) {
  static constexpr std::string_view kBegin = "\nddprun: ";
  const std::size_t begin = text.find(kBegin);
  if (begin == std::string::npos) return std::nullopt;
  const char* const number = text.data() + begin + kBegin.size();
  std::size_t bytes = 0;
  const auto [rest, error] = std::from_chars(number, text.data() + text.size(), bytes);
  if (error != std::errc() || !std::string_view(rest).starts_with(" bytes of output are dropped"))
    return std::nullopt;
  return bytes;
}

TEST_F(ConsoleTest, AtTheEndThePipeKeepsWhatItsReaderHasNotTakenYet) {
  std::string text;
  while (text.size() < kFlushPipeBytes - 4096) text += std::to_string(text.size()) + "\n";
  console.write(text);
  flush(loop, console, 0ms);
  EXPECT_TRUE(terminal.read() == text);
}

TEST_F(ConsoleTest, OfAConsoleThatNobodyReadsTheLastWordsAreKept) {
  const std::string text(3 * kLastWordsPipeBytes, 'x');
  console.write(text.substr(0, 1000));
  console.write(text.substr(1000));
  console.begin_last_words();
  console.write("\n");
  console.write("the report\n");
  flush(loop, console, 1ms);
  const std::string shown = terminal.read();
  ASSERT_TRUE(told_dropped(shown).has_value());
  EXPECT_EQ(shown.find_first_not_of('x') + *told_dropped(shown), text.size());
  EXPECT_TRUE(shown.ends_with("nobody read them\n\nthe report\n"));
}

TEST_F(ConsoleTest, AReaderIsNotWaitedForAnyLongerOnceSomebodySaysSo) {
  console.write(std::string(3 * kLastWordsPipeBytes, 'x'));
  console.begin_last_words();
  console.write("\nthe report\n");
  asio::post(loop, [this] { asio::post(loop, [this] { console.stop_waiting(); }); });
  const auto begin = std::chrono::steady_clock::now();
  flush(loop, console, kPatient);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kPatient / 2);
  EXPECT_TRUE(terminal.read().ends_with("\nthe report\n"));
}

TEST_F(ConsoleTest, AReaderThatHasTakenEverythingIsNotWaitedForAnyLonger) {
  const std::string text(2 * kFlushPipeBytes, 'x');
  console.write(text);
  asio::post(loop, [&] { asio::post(loop, [this] { terminal.read(); }); });
  const auto begin = std::chrono::steady_clock::now();
  flush(loop, console, kPatient);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kPatient / 2);
  EXPECT_EQ(terminal.read().size(), text.size());
}

TEST_F(ConsoleTest, AReaderThatTakesSomethingGetsEverything) {
  constexpr auto kLimit = 3000ms;
  constexpr int kPauses = 15;
  const std::string text(2 * kFlushPipeBytes, 'x');
  console.write(text);
  // It is the time that is tested: pauses that are together longer than the limit.
  std::thread reader([&] {
    for (int pause = 0; pause < kPauses; ++pause) {
      ::poll(nullptr, 0, static_cast<int>(2 * kLimit.count()) / kPauses);
      terminal.read_up_to(text.size() / 2 / kPauses);
    }
    terminal.await_bytes(text.size());
  });
  flush(loop, console, kLimit);
  reader.join();
  EXPECT_EQ(terminal.read().size(), text.size());
}

TEST_F(ConsoleTest, AConsoleThatNobodyReadsHoldsABoundedAmountAndSaysWhatIsMissing) {
  const std::string chunk(kReadBytes, 'x');
  constexpr std::size_t kChunks = 2 * kConsoleMostBytes / kReadBytes;
  for (std::size_t i = 0; i < kChunks; ++i) console.write(chunk);
  console.begin_last_words();
  console.write("report\n");
  await_shown("report\n");
  const std::string& shown = terminal.read();
  const auto kept = static_cast<std::size_t>(std::count(shown.begin(), shown.end(), 'x'));
  EXPECT_LE(kept, kConsoleMostBytes + kLastWordsPipeBytes);
  ASSERT_TRUE(told_dropped(shown).has_value());
  EXPECT_EQ(kept + *told_dropped(shown), kChunks * kReadBytes);
}

TEST_F(ConsoleTest, LogLinesWaitForTheConsoleAsOtherTextDoes) {
  const FileHandle other = new_file("other");
  {
    Consoles consoles(loop, other.get(), terminal.writer());
    consoles.take_log();
    consoles.err().write(std::string(kLastWordsPipeBytes, 'x'));
    log::warning("of the loop");  // would wait for ever in write(2)
    std::thread([] { log::warning("of another thread"); }).join();
    EXPECT_FALSE(terminal.read().ends_with("thread\n"));
    await_shown("] of another thread\n");
    EXPECT_NE(terminal.read().find("x\nW"), std::string::npos) << "begins a line";
    EXPECT_NE(terminal.read().find("] of the loop\nW"), std::string::npos);
  }
  testing::internal::CaptureStderr();
  log::warning("afterwards");
  EXPECT_TRUE(testing::internal::GetCapturedStderr().ends_with("afterwards\n"));
}

TEST_F(ConsoleTest, WordsOfOurOwnBeginALineAfterAWorkersPrompt) {
  console.begin_line();
  console.write("50%");
  console.begin_line();
  console.begin_line();
  console.write("report\n");
  EXPECT_EQ(terminal.read(), "50%\nreport\n");
}

TEST_F(ConsoleTest, StdoutAndStderrAreOneConsoleWhereTheyAreTheSamePipe) {
  const FileHandle other = new_file("other");
  Consoles same(loop, terminal.writer(), terminal.writer());
  EXPECT_EQ(&same.out(), &same.err());
  Consoles two(loop, terminal.writer(), other.get());
  EXPECT_NE(&two.out(), &two.err());
}

}  // namespace
}  // namespace ddprun::agent
