#include "agent/standstill/witness_answer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/numbers.h"

namespace ddprun::agent {
namespace {

using rendezvous::GroupPosition;

// The part before the next `separator`, which is taken off `text`.
std::string_view next(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

std::string cut(std::string_view text) {
  return std::string(text.substr(0, rendezvous::kMostEvidenceText));
}

// A number that is no number is 0.
template <typename Number>
Number number(std::string_view text) {
  return parse_whole<Number>(text).value_or(0);
}

WitnessFrame parse_frame(std::string_view fields) {
  WitnessFrame frame;
  frame.is_own = next(fields, '\t') == "own";
  frame.function = cut(next(fields, '\t'));
  frame.file = cut(next(fields, '\t'));
  frame.line = number<int>(next(fields, '\t'));
  return frame;
}

// "*" is all ranks.
std::vector<int> parse_ranks(std::string_view list) {
  std::vector<int> ranks;
  while (!list.empty() && list != "*") ranks.push_back(number<int>(next(list, ',')));
  // Better fewer members than all ranks: none is waited for that is no member.
  if (ranks.size() > rendezvous::kMostGroupRanks) ranks.resize(rendezvous::kMostGroupRanks);
  return ranks;
}

GroupPosition parse_group(std::string_view fields) {
  GroupPosition group;
  group.name = cut(next(fields, '\t'));
  group.ranks = parse_ranks(next(fields, '\t'));
  group.enqueued = number<std::int64_t>(next(fields, '\t'));
  group.completed = number<std::int64_t>(next(fields, '\t'));
  group.number = number<std::int64_t>(next(fields, '\t'));
  group.operation = cut(next(fields, '\t'));
  group.shapes = cut(next(fields, '\t'));
  return group;
}

}  // namespace

std::optional<WitnessAnswer> parse_witness_answer(std::string_view text) {
  constexpr std::size_t kMostFrames = 64;
  constexpr std::size_t kMostParsedGroups = 1024;
  WitnessAnswer answer;
  while (!text.empty()) {
    std::string_view fields = next(text, '\n');
    const std::string_view kind = next(fields, '\t');
    if (kind == "end") return answer;
    if (kind == "frame" && answer.stack.size() < kMostFrames)
      answer.stack.push_back(parse_frame(fields));
    if (kind == "inside") answer.inside = cut(next(fields, '\t'));
    if (kind == "group" && answer.groups.size() < kMostParsedGroups)
      answer.groups.push_back(parse_group(fields));
  }
  return std::nullopt;
}

std::string place_in(const std::vector<WitnessFrame>& stack) {
  if (stack.empty()) return {};
  const auto own = std::ranges::find(stack, true, &WitnessFrame::is_own);
  const WitnessFrame& frame = own == stack.end() ? stack.front() : *own;
  const std::string file = frame.file.substr(frame.file.rfind('/') + 1);
  return fmt::format("{} ({}:{})", frame.function, file, frame.line);
}

}  // namespace ddprun::agent
