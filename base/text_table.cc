#include "base/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace ddprun {
namespace {

constexpr std::size_t kColumnGap = 2;

}  // namespace

std::string text_table(const std::vector<TextRow>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const TextRow& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const TextRow& row : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i)
      text += fmt::format("{:<{}}", row[i], widths[i] + kColumnGap);
    text += row.back() + '\n';
  }
  return text;
}

}  // namespace ddprun
