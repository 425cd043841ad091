// Writes to the launcher's own stdout or stderr and never blocks the loop. A stuck terminal or a
// full pipe must not keep the agent from reaping and signalling. Text is written in the order of
// the calls. It does not read the workers' pipes: LogPipes does, and asks takes() before each read.
// So a slow reader slows the workers down. Loop's thread; Agent owns both consoles.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/output/console_turn.h"
#include "agent/output/nonblocking_writer.h"
#include "base/loop.h"

namespace ddprun::agent {

// If more bytes than this wait for a slow console, the workers' pipes are no longer read.
inline constexpr std::size_t kConsoleBacklogBytes = std::size_t{1} << 20;
// Text that would wait beyond this is dropped and counted; last words never are. The limit is
// needed because LogPipes::drain() empties the pipes at each restart, whether anybody reads or not.
// It holds the full pipes (kPipeBytes) of 64 streams.
inline constexpr std::size_t kConsoleMostBytes = std::size_t{16} << 20;
// At its end the launcher waits this long for a reader that takes nothing. The workers of torchrun
// would block for ever. But a pager that somebody left open must not keep the nodes of the job.
inline constexpr std::chrono::seconds kFlushLimit{30};
// At its end the launcher enlarges the user's pipe up to this. A pipe keeps its content for the
// reader when we are gone. By default every user may have 1 MiB (pipe(7), pipe-max-size). The
// second half of that is left for the last words.
inline constexpr std::size_t kFlushPipeBytes = std::size_t{512} << 10;
inline constexpr std::size_t kLastWordsPipeBytes = std::size_t{1} << 20;

class Console {
 public:
  // `fd` stays the caller's and must stay open as long as this lives. `called` is the program's
  // name: the lines about dropped text begin with it.
  Console(asio::io_context& loop, int fd, std::string called = "ddprun");
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  Console(Console&&) = delete;
  Console& operator=(Console&&) = delete;
  ~Console() = default;

  // Queues `text` behind all earlier text. If it would make more than kConsoleMostBytes wait, it is
  // dropped. A line before the next text that is not dropped says how much is missing.
  void write(std::string text);
  // Text that is written from now on is never dropped for lack of room: the failure report. Call it
  // when no worker writes any more.
  void begin_last_words();
  // Call before a line of our own: it ends the line that a prompt or a progress bar left open.
  void begin_line();

  // True while more than kConsoleBacklogBytes wait.
  bool full() const { return queued_bytes_ > kConsoleBacklogBytes; }
  bool is_terminal() const { return is_terminal_; }

  // True if `stream` may write now: there is room, and no other stream has the turn.
  bool takes(const void* stream) const { return !full() && turn_.is_free_for(stream); }
  // Call only when takes() is false. Calls back once, when there is room again or when the turn is
  // free. Then ask takes() again: another stream may have been faster.
  void when_ready(std::function<void()> callback);

  const ConsoleTurn& turn() const { return turn_; }
  // `stream` is in the middle of a line: no other may write until release_turn().
  void hold_turn(const void* stream, Time now) { turn_.hold(stream, now); }
  // Does nothing if `stream` does not have the turn.
  void release_turn(const void* stream);

  // For the end of the launcher. Waits until all that is queued is written. If the reader takes
  // nothing for `limit`, or after stop_waiting(), it gives up. It drops all but the last words, and
  // adds a line that says how much. It writes what still fits without waiting.
  asio::awaitable<void> flush(std::chrono::milliseconds limit = kFlushLimit);
  void stop_waiting();

 private:
  enum class Progress { kWritten, kWouldBlock };

  void push(std::string text);
  void write_some();
  Progress write_chunk();
  bool write_all_now();
  std::string dropped_line(std::size_t bytes) const;
  void tell_dropped();
  void grow_pipe(std::size_t most_bytes) const;
  void give_up();

  const std::string called_;
  NonblockingWriter writer_;
  bool is_terminal_;
  bool waiting_ = false;
  asio::steady_timer patience_;  // of flush(); cancelled when the reader takes something
  bool is_patient_ = true;
  bool at_line_start_ = true;
  std::deque<std::string> queue_;
  std::size_t written_of_front_ = 0;
  std::size_t queued_bytes_ = 0;
  std::size_t dropped_bytes_ = 0;  // not yet told to the reader
  // Bytes queued since begin_last_words(), also those written since. None if it was not called.
  std::optional<std::size_t> last_words_bytes_;
  ConsoleTurn turn_;
  std::vector<std::function<void()>> when_drained_;
  std::vector<std::function<void()>> when_free_;
};

// The launcher's stdout and stderr. If both are the same terminal, pipe or file (2>&1), there is
// only one console. With two, one could write in the middle of a line of the other.
class Consoles {
 public:
  Consoles(asio::io_context& loop, int out_fd, int err_fd, const std::string& called = "ddprun");
  Consoles(const Consoles&) = delete;
  Consoles& operator=(const Consoles&) = delete;
  ~Consoles();

  Console& out() { return out_; }
  Console& err() { return err_ ? *err_ : out_; }
  const Console& err() const { return err_ ? *err_ : out_; }
  // True if both are one file or pipe (2>&1). Its reader gets the bytes of both in the order in
  // which they were written. False for a terminal and for /dev/null.
  bool share_an_order() const { return share_an_order_; }
  // Shows the lines of base/log.h on err() from now on. So a slow reader of the log cannot block a
  // thread of ours. Call it on the loop's thread. This object's end undoes it.
  void take_log();
  // As Console::flush() and Console::stop_waiting(), for both consoles at the same time.
  asio::awaitable<void> flush();
  void stop_waiting();

 private:
  asio::io_context& loop_;
  bool has_log_ = false;
  bool share_an_order_;
  Console out_;
  std::unique_ptr<Console> err_;  // null: out_ is both
};

}  // namespace ddprun::agent
