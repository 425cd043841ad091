// The sink of a tee'd stream. Its bytes go to the worker's file unchanged and to the console line
// by line. Lines that match the user's filters go to the node's filtered file too. It does not read
// the pipe (LogPipes) and does not decide how lines look (LineFormatter). Loop's thread. LogPipes
// owns the sinks; WorkerFiles owns the TeeConsoles.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "agent/output/line_formatter.h"
#include "agent/output/line_splitter.h"
#include "agent/output/stream_sink.h"
#include "base/file_handle.h"

namespace ddprun::agent {

// A file that gets a copy of output. A full disk must not end the job. Bytes that cannot be written
// are missing in the file, and one warning says so.
class CopyFile {
 public:
  // If `file` holds no descriptor, all bytes are dropped without a warning.
  explicit CopyFile(FileHandle file) : file_(std::move(file)) {}
  // Never fails. The disk may make it wait.
  void write(std::string_view bytes);
  void close() { file_.close(); }

 private:
  void warn(int why);

  FileHandle file_;
  bool warned_ = false;
};

// The console, the line formatter and the filtered file. All tee'd streams of one kind (stdout or
// stderr) share them for one attempt. Folding needs this: it compares the lines of all ranks.
class TeeConsole {
 public:
  // `console` must outlive this. `filtered` may hold no descriptor.
  TeeConsole(Console& console, LineFormat plan, FileHandle filtered)
      : console_(console), lines_(std::move(plan)), filtered_(std::move(filtered)) {}

  Console& console() const { return console_; }
  LineFormatter& lines() { return lines_; }
  // Writes what the formatter has ready, to the console and to the filtered file. Call it after
  // each use of lines().
  void push();

 private:
  Console& console_;
  LineFormatter lines_;
  CopyFile filtered_;
};

class TeeSink final : public StreamSink {
 public:
  // `console` must outlive this. `file` is the worker's own; `source` names the worker.
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
