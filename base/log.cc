#include "base/log.h"

#define SPDLOG_FMT_EXTERNAL
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "base/shown_text.h"

namespace ddprun::log {
namespace {

// The most bytes of one line.
constexpr std::size_t kLineBytes = std::size_t{4} * kShownBytes;

// The end of every line's way. base_sink's mutex also guards writer_, so that one thread may change
// the writer while another one logs.
class Sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void set_writer(Writer writer) {
    const std::lock_guard lock(mutex_);
    writer_ = std::move(writer);
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (writer_) {
      writer_({line.data(), line.size()});
    } else {
      std::fwrite(line.data(), 1, line.size(), stderr);
    }
  }
  void flush_() override {}  // stderr has no buffer

  Writer writer_;
};

// Made at first use, so that a line may be logged while other globals are still being made.
const std::shared_ptr<Sink>& sink() {
  static const auto kSink = std::make_shared<Sink>();
  return kSink;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> kLogger = [] {
    auto made = std::make_shared<spdlog::logger>("ddprun", sink());
    // The form of PyTorch's own lines (torch/_logging/_internal.py), so that a log scraper made for
    // torchrun can read ours. `ddprun` stands where PyTorch names file and line.
    made->set_pattern("%L%m%d %H:%M:%S.%e %P ddprun] %v");
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *kLogger;
}

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

// Hands the text over as data. As a format, a brace in a file name would be an error.
void write(Level level, std::string_view text) {
  if (!logger().should_log(spdlog_level(level))) return;
  const std::string line = shown_text(text, kLineBytes);
  logger().log(spdlog_level(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace

void set_writer(Writer writer) { sink()->set_writer(std::move(writer)); }
void set_level(Level level) { logger().set_level(spdlog_level(level)); }
void debug(std::string_view text) { write(Level::kDebug, text); }
void info(std::string_view text) { write(Level::kInfo, text); }
void warning(std::string_view text) { write(Level::kWarning, text); }
void error(std::string_view text) { write(Level::kError, text); }

}  // namespace ddprun::log
