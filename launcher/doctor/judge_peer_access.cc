#include "launcher/doctor/judge_peer_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "launcher/doctor/nccl_words.h"

namespace ddprun::launcher {
namespace {

// The looks of a job then, and the proof (NCCL user guide, "Troubleshooting", GPU Direct).
constexpr const char* kHang =
    "sums of NCCL may be slow, or the first one hangs with all GPUs at 100 %";
constexpr const char* kProof = "`NCCL_P2P_DISABLE=1 ddprun …` goes on if it is that";

const PeerAccessFacts* peers_of(const NodeQuestion& question, const NodeFacts& facts) {
  return question.gpus > 1 && facts.gpus ? &facts.gpus->peers : nullptr;
}

bool is_off(const NodeQuestion& question) {
  const std::string_view level = value_of(question, "NCCL_P2P_LEVEL");
  return is_set(value_of(question, "NCCL_P2P_DISABLE")) || is_word(level, "LOC") || level == "0";
}

// nvidia-smi's legend.
std::string_view meaning_of(std::string_view word) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kLegend{{
      {"CNS", "the chipset does not support it"},
      {"GNS", "the GPU does not support it"},
      {"TNS", "the topology does not support it"},
      {"DR", "a key of the registry disables it"},
      {"NS", "not supported"},
  }};
  const auto* const found = std::find_if(kLegend.begin(), kLegend.end(),
                                         [&](const auto& one) { return one.first == word; });
  return found == kLegend.end() ? word : found->second;
}

Finding refused(const std::vector<RefusedPair>& pairs) {
  const RefusedPair& first = pairs.front();
  const std::string more = pairs.size() == 1 ? "" : fmt::format(", and {} more", pairs.size() - 1);
  return {Level::kWarning, "peer access",
          fmt::format("none between {} and {} ({}){}: sums go through shared memory, more slowly",
                      first.one, first.other, meaning_of(first.word), more),
          "`nvidia-smi topo -m` shows what is between them"};
}

// Whether a pair has peer access, or may have: nvidia-smi gave no answer.
bool has_some(const PeerAccessFacts& peers) {
  const auto gpus = static_cast<std::size_t>(peers.gpus_asked);
  return gpus == 0 || peers.refused.size() < gpus * (gpus - 1) / 2;
}

std::string seen(const PeerAccessFacts& peers) {
  const char* const acs = peers.is_acs_hidden ? "; ACS is shown to root alone" : "";
  return fmt::format("{} GPUs reach each other's memory{}", peers.gpus_asked, acs);
}

}  // namespace

bool is_peer_access_bent(const NodeQuestion& question, const NodeFacts& facts) {
  const PeerAccessFacts* const peers = peers_of(question, facts);
  return peers != nullptr && has_some(*peers) &&
         (!peers->iommu.empty() || !peers->redirecting.empty());
}

void judge_peer_access(const NodeQuestion& question, const NodeFacts& facts, Findings& found) {
  const PeerAccessFacts* const peers = peers_of(question, facts);
  if (peers == nullptr) return;
  const bool has_peers = peers->gpus_asked > 1 && peers->refused.empty();
  if (!peers->refused.empty()) found.push_back(refused(peers->refused));
  if (!is_peer_access_bent(question, facts)) {
    if (has_peers && !is_off(question)) found.push_back({Level::kOk, "peer access", seen(*peers)});
    return;
  }
  if (is_off(question)) {
    found.push_back({Level::kOk, "peer access", "switched off, as IOMMU or ACS here want it"});
    return;
  }
  if (!peers->iommu.empty())
    found.push_back(
        {Level::kWarning, "IOMMU",
         fmt::format("{} translates what GPUs send to each other: {}", peers->iommu, kHang),
         fmt::format("{}; then iommu=pt on the kernel's command line", kProof)});
  if (!peers->redirecting.empty())
    found.push_back(
        {Level::kWarning, "ACS",
         fmt::format("on at {}, so what GPUs send to each other goes through the processor: {}",
                     fmt::join(peers->redirecting, ", "), kHang),
         fmt::format("{}; then `setpci -s {} ECAP_ACS+6.w=0000`, or off in the BIOS", kProof,
                     peers->redirecting.front())});
}

void judge_peer_variables(const NodeQuestion& question, const NodeFacts& facts, Findings& found) {
  if (question.gpus < 2) return;
  const auto warn = [&](const char* name, std::string fact) {
    found.push_back({Level::kWarning, name, std::move(fact), fmt::format("`unset {}`", name)});
  };
  const std::string_view level = value_of(question, "NCCL_P2P_LEVEL");
  constexpr std::array kLevels{"LOC", "NVL", "PIX", "PXB", "PHB", "SYS"};
  const bool is_level = (level.size() == 1 && level[0] >= '0' && level[0] <= '5') ||
                        std::any_of(kLevels.begin(), kLevels.end(),
                                    [&](const char* one) { return is_word(level, one); });
  if (!level.empty() && !is_level)
    warn("NCCL_P2P_LEVEL",
         fmt::format("{} is no level; there are {}", level, fmt::join(kLevels, ", ")));
  if (is_set(value_of(question, "NCCL_SHM_DISABLE")))
    warn("NCCL_SHM_DISABLE",
         fmt::format("{} GPUs without peer access go through the network", question.gpus));
  if (is_peer_access_bent(question, facts)) return;  // it should be off
  const auto off = fmt::format("{} GPUs may not copy to each other directly", question.gpus);
  if (is_word(level, "LOC") || level == "0")
    warn("NCCL_P2P_LEVEL", fmt::format("{}: {}", level, off));
  if (is_set(value_of(question, "NCCL_P2P_DISABLE"))) warn("NCCL_P2P_DISABLE", off);
}

}  // namespace ddprun::launcher
