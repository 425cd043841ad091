#include "worker/startup/gpu_choice.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "worker/collective/core/exchange.h"

namespace ddprun::worker {
namespace {

constexpr char kSeparator = '\n';

// Ranks that share a GPU by an accident of the start.
std::string shared_gpu(int first, int second, const DeviceClaim& claim) {
  return fmt::format(
      "ranks {} and {} of host {} have the same GPU ({}): start one rank for each GPU, or show "
      "each rank a GPU of its own (CUDA_VISIBLE_DEVICES, ddprun --virtual-local-rank)",
      first, second, claim.host, claim.gpu);
}

}  // namespace

Result<int> choose_gpu(const GpuQuestion& question) {
  const auto [local_rank, asked, visible] = question;
  if (asked) {
    if (*asked >= 0 && *asked < visible) return *asked;
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("gpu={}: expected a number from 0 on below the {} GPUs that this "
                             "process sees",
                             *asked, visible));
  }
  if (visible == 1) return 0;
  if (local_rank < visible) return local_rank;
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("no GPU is left for local rank {}: this process sees {} GPUs",
                           local_rank, visible));
}

std::string encode(const DeviceClaim& claim) {
  std::string text = claim.host + kSeparator + claim.gpu + kSeparator + claim.why;
  if (text.size() > Exchange::kTextBytesMax) text.resize(Exchange::kTextBytesMax);
  return text;
}

DeviceClaim decode_claim(std::string_view text) {
  const auto first = text.find(kSeparator);
  const auto second = first == text.npos ? first : text.find(kSeparator, first + 1);
  if (second == text.npos) return {.host = "?", .why = "it said nothing of its GPU"};
  return {.host = std::string(text.substr(0, first)),
          .gpu = std::string(text.substr(first + 1, second - first - 1)),
          .why = std::string(text.substr(second + 1))};
}

std::string why_no_gpus(std::span<const DeviceClaim> claims) {
  if (claims.size() == 1) return claims.front().why;
  std::map<std::pair<std::string, std::string>, int> owners;
  int rank = 0;
  for (const DeviceClaim& claim : claims) {
    if (claim.gpu.empty()) return fmt::format("rank {}: {}", rank, claim.why);
    const auto [owner, is_first] = owners.try_emplace({claim.host, claim.gpu}, rank);
    if (!is_first) return shared_gpu(owner->second, rank, claim);
    ++rank;
  }
  return "";
}

}  // namespace ddprun::worker
