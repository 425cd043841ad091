// A run's report as one page of HTML. It loads nothing, needs no script, and draws by SVG. It is
// light or dark as its reader's system is. All texts in it are escaped. Pure. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "launcher/report/run_report.h"

namespace ddprun::launcher {

// The last rounds and the first nodes are drawn. The page says what it leaves out.
inline constexpr std::size_t kMostDrawnRounds = 500;
inline constexpr std::size_t kMostDrawnNodes = 256;

std::string report_page(const RunReport& report);

// `text` as shown_text() has it, for HTML's text and quoted attributes.
std::string escaped(std::string_view text);

}  // namespace ddprun::launcher
