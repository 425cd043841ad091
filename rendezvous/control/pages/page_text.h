// Words and times as the status page shows them. Each text of others is made safe for HTML here.
// Pure; any thread.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/control/pages/status_report.h"

namespace ddprun::http {

inline constexpr std::size_t kMostTextShown = 1000;  // bytes of one foreign text
inline constexpr std::size_t kMostNameShown = 253;   // of a host's name: DNS has no longer ones

std::string shown(std::string_view text, std::size_t most = kMostTextShown);

// "2026-11-24 21:39:15 UTC"
std::string when(WallTime time);
// "21:39:15"
std::string time_of_day(WallTime time);
// "4 h 12 min 5 s"
std::string for_how_long(std::chrono::nanoseconds length);
// "1 node", "2 nodes"
std::string counted(std::size_t count, std::string_view what);

template <typename... Args>
void add(std::string& page, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(page), format, std::forward<Args>(args)...);
}

}  // namespace ddprun::http
