#include "worker/collective/core/exchange.h"

#include <fmt/format.h>

#include <algorithm>

namespace ddprun::worker {
namespace {

// In front of an error.
constexpr std::string_view kFailed = "! ";

}  // namespace

Result<std::vector<std::string>> gather_or_fail(Exchange& exchange, int rank,
                                                const Result<std::string>& mine) {
  std::string text = mine ? *mine : fmt::format("{}{}", kFailed, mine.error().message());
  if (!mine) text.resize(std::min(text.size(), Exchange::kTextBytesMax));
  auto texts = exchange.gather(rank, text);
  if (!mine) return mine.error();
  if (!texts) return texts.error();
  for (std::size_t other = 0; other < texts->size(); ++other) {
    const std::string& theirs = (*texts)[other];
    if (theirs.starts_with(kFailed))
      return Error(ErrorCode::kUnavailable,
                   fmt::format("rank {}: {}", other, theirs.substr(kFailed.size())));
  }
  return texts;
}

}  // namespace ddprun::worker
