#include "proto/host_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/numbers.h"

namespace ddprun {
namespace {

using Names = std::vector<std::string>;

Error invalid(std::string_view entry, std::string_view why) {
  return {ErrorCode::kInvalidArgument, fmt::format("{} in the host list: {}", entry, why)};
}

Error too_much(std::string_view what) {
  return {ErrorCode::kLimit, fmt::format("the host list has more than {}", what)};
}

Error too_long_name() {
  return too_much(fmt::format("{} characters in a name", kMaxHostNameBytes));
}

bool is_separator(char c) { return c == ',' || c == ' ' || c == '\t' || c == '\n'; }

// `01-03` or `7`, appended to `numbers`.
Result<void> add_range(std::string_view entry, std::string_view range, Names& numbers) {
  const auto dash = range.find('-');
  const std::string_view low_text = range.substr(0, dash);
  const auto low = parse_whole<std::uint64_t>(low_text);
  auto high = low;
  // `1-` is `1`, as Slurm reads it.
  if (dash != std::string_view::npos && dash + 1 < range.size())
    high = parse_whole<std::uint64_t>(range.substr(dash + 1));
  if (!low || !high || *high < *low) return invalid(entry, fmt::format("`{}` is no range", range));
  if (*high - *low >= kMaxHosts || numbers.size() + (*high - *low) >= kMaxHosts)
    return too_much(fmt::format("{} hosts", kMaxHosts));
  if (low_text.size() > kMaxHostNameBytes) return too_long_name();
  // Counted, not compared with `high`: no number comes after the largest one.
  const std::uint64_t count = *high - *low + 1;
  for (std::uint64_t i = 0; i < count; ++i)
    numbers.push_back(fmt::format("{:0{}}", *low + i, low_text.size()));
  return {};
}

// Reads the text between two brackets: `01-03,7`.
Result<Names> parse_ranges(std::string_view entry, std::string_view ranges) {
  Names numbers;
  while (true) {
    const auto comma = std::min(ranges.find(','), ranges.size());
    if (const auto added = add_range(entry, ranges.substr(0, comma), numbers); !added)
      return added.error();
    if (comma == ranges.size()) return numbers;
    ranges.remove_prefix(comma + 1);
  }
}

std::size_t longest(const Names& texts) {
  return std::ranges::max_element(texts, {}, &std::string::size)->size();
}

// Every name of `names` with every number behind it. Slurm lets the last bracket of an entry run
// fastest, and then the first one.
Result<Names> with_numbers(const Names& names, const Names& numbers, bool is_last) {
  if (names.size() * numbers.size() > kMaxHosts)
    return too_much(fmt::format("{} hosts", kMaxHosts));
  if (longest(names) + longest(numbers) > kMaxHostNameBytes) return too_long_name();
  Names all;
  const std::size_t outer = is_last ? names.size() : numbers.size();
  const std::size_t inner = is_last ? numbers.size() : names.size();
  for (std::size_t i = 0; i < outer; ++i) {
    for (std::size_t j = 0; j < inner; ++j)
      all.push_back(is_last ? names[i] + numbers[j] : names[j] + numbers[i]);
  }
  return all;
}

// Reads one text of an entry, up to the next bracket or the end, and appends it to all names.
Result<void> take_text(std::string_view entry, std::string_view& rest, Names& names) {
  const auto open = std::min(rest.find('['), rest.size());
  const std::string_view text = rest.substr(0, open);
  if (text.find(']') != std::string_view::npos) return invalid(entry, "a ] without a [");
  for (std::string& name : names) name += text;
  if (names.front().size() > kMaxHostNameBytes) return too_long_name();
  rest.remove_prefix(open);
  return {};
}

// Reads one bracket of an entry, with which `rest` begins, and appends its numbers to all names.
Result<void> take_bracket(std::string_view entry, std::string_view& rest, Names& names) {
  const auto close = rest.find(']');
  if (close == std::string_view::npos) return invalid(entry, "a [ without a ]");
  const auto numbers = parse_ranges(entry, rest.substr(1, close - 1));
  if (!numbers) return numbers.error();
  rest.remove_prefix(close + 1);
  auto longer = with_numbers(names, *numbers, rest.empty());
  if (!longer) return longer.error();
  names = *std::move(longer);
  return {};
}

// One entry, `a[01-03,7]b[1-2]`: a text before each bracket, and nothing behind the last one.
Result<Names> expand(std::string_view entry) {
  Names names{""};
  std::string_view rest = entry;
  for (std::size_t brackets = 0; !rest.empty(); ++brackets) {
    if (brackets > kMaxBrackets) return too_much(fmt::format("{} brackets", kMaxBrackets));
    if (auto done = take_text(entry, rest, names); !done) return done.error();
    if (rest.empty() && brackets > 0)
      return invalid(entry, "expected nothing behind the last bracket");
    if (rest.empty()) break;
    if (auto done = take_bracket(entry, rest, names); !done) return done.error();
  }
  return names;
}

// Returns the end of the entry that `text` begins with: a comma between brackets does not end it.
std::size_t end_of_entry(std::string_view text) {
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') inside = true;
    if (text[i] == ']') inside = false;
    if (!inside && is_separator(text[i])) return i;
  }
  return text.size();
}

}  // namespace

Result<std::vector<std::string>> parse_host_list(std::string_view text) {
  Names hosts;
  while (!text.empty()) {
    const auto end = end_of_entry(text);
    if (end > 0) {
      auto names = expand(text.substr(0, end));
      if (!names) return names.error();
      if (hosts.size() + names->size() > kMaxHosts)
        return too_much(fmt::format("{} hosts", kMaxHosts));
      hosts.insert(hosts.end(), names->begin(), names->end());
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return hosts;
}

}  // namespace ddprun
