// Writes to the launcher's own stdout or stderr without ever blocking the loop: a stuck terminal or
// a full pipe must not keep the agent from reaping and signalling. Whole chunks in order; the
// reader's slowness is passed on by takes(). Loop's thread.
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
#include "proto/loop.h"

namespace ddprun::agent {

// Bytes waiting for a slow console before the workers' pipes are no longer read.
inline constexpr std::size_t kConsoleBacklogBytes = std::size_t{1} << 20;
// Beyond this text is dropped and counted, the launcher's last words excepted: with each restart
// the pipes of an attempt are emptied (LogPipes::drain) whether anybody reads or not. A pipe's
// whole content (kPipeBytes) of 64 streams.
inline constexpr std::size_t kConsoleMostBytes = std::size_t{16} << 20;
// How long the launcher's end waits for a reader that takes nothing at all. torchrun's workers
// would block for ever; a pager that is looked at must not keep a job's allocation.
inline constexpr std::chrono::seconds kFlushLimit{30};
// A pipe of the user's is made so large at the end, to keep what waits for its reader: never beyond
// what every user may have (pipe(7), pipe-max-size). The second is for last words only.
inline constexpr std::size_t kFlushPipeBytes = std::size_t{512} << 10;
inline constexpr std::size_t kLastWordsPipeBytes = std::size_t{1} << 20;

class Console {
 public:
  // Writes to what `fd` is open on; `fd` is not owned. `called`: the name that a line of its own
  // begins with.
  Console(asio::io_context& loop, int fd, std::string called = "ddprun");
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  Console(Console&&) = delete;
  Console& operator=(Console&&) = delete;
  ~Console() = default;

  // Queues `text`; written in order. Drops it where kConsoleMostBytes wait; a line says so later.
  void write(std::string text);
  // What is written from now on is never dropped for want of room, and comes last: the report.
  void begin_last_words();
  // Ends the line that a worker's prompt or progress bar left open, for words of our own.
  void begin_line();

  // True while more than kConsoleBacklogBytes wait.
  bool full() const { return queued_bytes_ > kConsoleBacklogBytes; }
  bool is_terminal() const { return is_terminal_; }

  // Whether `stream` may write now: there is room, and no other stream has the turn.
  bool takes(const void* stream) const { return !full() && turn_.is_free_for(stream); }
  // Calls back once when the reason for takes() being false is gone; ask takes() again.
  void when_ready(std::function<void()> callback);

  const ConsoleTurn& turn() const { return turn_; }
  // Keeps the others away until release_turn(): `stream` is in the middle of a line.
  void hold_turn(const void* stream, Time now) { turn_.hold(stream, now); }
  // No-op for a stream that does not have the turn.
  void release_turn(const void* stream);

  // For the end of the launcher: waits until all that is queued is written, as long as the reader
  // takes some of it within `limit`. Then, or after stop_waiting(), drops all but the last words
  // and says how much.
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
  asio::steady_timer patience_;  // of flush(); cancelled when the reader took something
  bool is_patient_ = true;
  bool at_line_start_ = true;
  std::deque<std::string> queue_;
  std::size_t written_of_front_ = 0;
  std::size_t queued_bytes_ = 0;
  std::size_t dropped_bytes_ = 0;                // since the last word on it
  std::optional<std::size_t> last_words_bytes_;  // of those queued; none: not begun
  ConsoleTurn turn_;
  std::vector<std::function<void()>> when_drained_;
  std::vector<std::function<void()>> when_free_;
};

// The launcher's stdout and stderr: one console where both are the same terminal, pipe or file
// (2>&1), so that neither cuts into a line of the other.
class Consoles {
 public:
  Consoles(asio::io_context& loop, int out_fd, int err_fd, const std::string& called = "ddprun");
  Consoles(const Consoles&) = delete;
  Consoles& operator=(const Consoles&) = delete;
  ~Consoles();

  Console& out() { return out_; }
  Console& err() { return err_ ? *err_ : out_; }
  const Console& err() const { return err_ ? *err_ : out_; }
  // True where both are one file or pipe (2>&1): what goes to one of them and what goes to the
  // other is read in the order in which it was written. Not of a terminal, nor of /dev/null.
  bool share_an_order() const { return share_an_order_; }
  // Shows the log's lines on err() from now on: there they wait for a slow reader without us. On
  // the loop's thread.
  void take_log();
  // As Console::flush() and stop_waiting(), both at once.
  asio::awaitable<void> flush();
  void stop_waiting();

 private:
  asio::io_context& loop_;
  bool has_log_ = false;
  bool share_an_order_;
  Console out_;
  std::unique_ptr<Console> err_;  // none: out_ is both
};

}  // namespace ddprun::agent
