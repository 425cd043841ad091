#include "worker/checkpoint/gathered_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace ddprun::worker {

std::vector<std::string> gather_texts(const std::string& mine, Collective& ranks) {
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths;
  for (const auto& bytes : ranks.all_gather_bytes(std::as_bytes(std::span(&length, 1)))) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, bytes.data(), std::min(sizeof theirs, bytes.size()));
    lengths.push_back(theirs);
  }
  std::vector<std::string> texts(lengths.size());
  const std::uint64_t longest = std::ranges::max(lengths);
  for (std::size_t at = 0; at < longest; at += Collective::kGatherBytesMax) {
    const std::string_view rest = std::string_view(mine).substr(std::min(at, mine.size()));
    const auto pieces = ranks.all_gather_bytes(
        std::as_bytes(std::span(rest.substr(0, Collective::kGatherBytesMax))));
    for (std::size_t rank = 0; rank < texts.size(); ++rank)
      texts[rank].append(reinterpret_cast<const char*>(pieces[rank].data()), pieces[rank].size());
  }
  return texts;
}

Result<std::vector<std::string>> gather_results(const Result<std::string>& mine,
                                                Collective& ranks) {
  auto texts = gather_texts(mine ? "+" + *mine : "-" + std::string(mine.error().message()), ranks);
  if (!mine) return mine.error();
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].starts_with('-'))
      return Error(ErrorCode::kRejected, fmt::format("rank {}: {}", rank, texts[rank].substr(1)));
    texts[rank].erase(0, 1);
  }
  return texts;
}

}  // namespace ddprun::worker
