#include "rendezvous/control/pages/page_text.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cstdint>

#include "base/net/http/escape.h"
#include "base/shown_text.h"

namespace ddprun::http {

std::string shown(std::string_view text, std::size_t most) {
  return escape_html(shown_text(text, most));
}

std::string when(WallTime time) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(time)));
}

std::string time_of_day(WallTime time) {
  return fmt::format("{:%H:%M:%S}", fmt::gmtime(std::chrono::system_clock::to_time_t(time)));
}

std::string for_how_long(std::chrono::nanoseconds length) {
  const auto seconds =
      std::max<std::int64_t>(std::chrono::duration_cast<std::chrono::seconds>(length).count(), 0);
  std::string text;
  if (seconds >= 3600) add(text, "{} h ", seconds / 3600);
  if (seconds >= 60) add(text, "{} min ", seconds / 60 % 60);
  return text + fmt::format("{} s", seconds % 60);
}

std::string counted(std::size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace ddprun::http
