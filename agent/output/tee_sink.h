// A tee'd stream: to its file byte for byte, to the console line by line, and what the user's
// filters choose to the node's filtered file. Loop's thread; owned by LogPipes.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "agent/output/line_formatter.h"
#include "agent/output/line_splitter.h"
#include "agent/output/stream_sink.h"
#include "proto/file_handle.h"

namespace ddprun::agent {

// A file of output, to which the disk may refuse more. That must not end the job: what cannot be
// written is missing there, and a warning says so once.
class CopyFile {
 public:
  // Without a file everything is dropped.
  explicit CopyFile(FileHandle file) : file_(std::move(file)) {}
  void write(std::string_view bytes);
  void close() { file_.close(); }

 private:
  void warn(int why);

  FileHandle file_;
  bool warned_ = false;
};

// The console as the tee'd streams of one kind see it, all ranks together, in one attempt.
class TeeConsole {
 public:
  // `filtered` may be none. `console` outlives this.
  TeeConsole(Console& console, LineFormat plan, FileHandle filtered)
      : console_(console), lines_(std::move(plan)), filtered_(std::move(filtered)) {}

  Console& console() const { return console_; }
  LineFormatter& lines() { return lines_; }
  // Writes what came of the lines.
  void push();

 private:
  Console& console_;
  LineFormatter lines_;
  CopyFile filtered_;
};

class TeeSink final : public StreamSink {
 public:
  // `console` outlives this.
  TeeSink(FileHandle file, LineSource source, TeeConsole& console)
      : StreamSink(console.console()),
        file_(std::move(file)),
        source_(std::move(source)),
        console_(console) {}

  void take(std::string_view bytes, Time now) override;
  void finish(Time now) override;
  bool in_long_line() const override { return splitter_.in_long_line(); }
  void interrupt() override;
  void time_passed(Time now) override;
  Time look_again_at() const override { return console_.lines().look_again_at(); }

 private:
  CopyFile file_;
  LineSource source_;
  LineSplitter splitter_;
  TeeConsole& console_;
};

}  // namespace ddprun::agent
