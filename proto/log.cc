#include "proto/log.h"

#define SPDLOG_FMT_EXTERNAL
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace ddprun::log {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> kLogger = [] {
    auto made = std::make_shared<spdlog::logger>("ddprun",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
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

void write(Level level, std::string_view text) {
  logger().log(spdlog_level(level), spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace

void set_level(Level level) { logger().set_level(spdlog_level(level)); }
void debug(std::string_view text) { write(Level::kDebug, text); }
void info(std::string_view text) { write(Level::kInfo, text); }
void warning(std::string_view text) { write(Level::kWarning, text); }
void error(std::string_view text) { write(Level::kError, text); }

}  // namespace ddprun::log
