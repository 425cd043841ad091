#include "launcher/report/read_histories.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "agent/report/error_record.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

// At most so many bytes. Empty: it is no regular file, or cannot be read.
std::string read_file(const fs::path& path, std::size_t most) {
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) return {};
  const auto size = static_cast<std::size_t>(fs::file_size(path, failed));
  std::ifstream file(path, std::ios::binary);
  std::string text(failed ? 0 : std::min(size, most), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

// The first line of what the rank to blame has recorded, if it is one of this node.
std::string error_of(const NodeHistory& node, const RoundFact& round, const BreakFact& broke) {
  const int local_rank = broke.rank - round.first_rank;
  if (broke.hostname != node.hostname || local_rank < 0 || local_rank >= round.workers) return {};
  const fs::path path = fs::path(node.folder) / fmt::format("attempt_{}", round.number - 1) /
                        fmt::format("{}", local_rank) / "error.json";
  const auto record = agent::parse_error_record(read_file(path, agent::kMaxErrorRecordBytes));
  return record ? record->message.substr(0, record->message.find('\n')) : "";
}

std::optional<NodeHistory> read_history(const fs::path& folder) {
  NodeHistory node = parse_history(read_file(folder / kHistoryFile, kMostHistoryBytes));
  if (node.rounds.empty()) return std::nullopt;
  node.folder = folder.string();
  for (RoundFact& round : node.rounds)
    if (round.broke) round.broke->error = error_of(node, round, *round.broke);
  if (node.end) node.end->error = error_of(node, node.rounds.back(), *node.end);
  return node;
}

// The folders of jobs in a --log-dir. `latest` is one of them by another name.
std::vector<NodeHistory> read_below(const fs::path& root) {
  std::vector<NodeHistory> all;
  std::error_code failed;
  for (fs::directory_iterator at(root, failed), end; !failed && at != end; at.increment(failed)) {
    std::error_code ignored;
    if (at->is_symlink(ignored) || !at->is_directory(ignored)) continue;
    if (auto node = read_history(at->path())) all.push_back(*std::move(node));
    if (all.size() == kMostJobFolders) break;
  }
  return all;
}

bool overlaps(const NodeHistory& left, const NodeHistory& right) {
  return left.rounds.front().began <= right.last_sign &&
         right.rounds.front().began <= left.last_sign;
}

bool is_alone(const NodeHistory& node) {
  return std::ranges::all_of(node.rounds, [](const RoundFact& round) { return round.nodes <= 1; });
}

// The nodes of the folder that the user gave: one, or those of the newest job below it.
Result<std::vector<NodeHistory>> histories_at(const std::string& folder) {
  std::error_code failed;
  const fs::path path = fs::canonical(folder, failed);
  if (failed)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("report {}: expected a log folder: {}", folder, failed.message()));
  std::vector<NodeHistory> found;
  if (auto one = read_history(path))
    found.push_back(*std::move(one));
  else
    found = of_newest_job(read_below(path));
  if (!found.empty()) return found;
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("report {}: expected a --log-dir, or a job's folder in it: there is "
                           "no {} of a job that has begun a round with DDPRUN_HISTORY=1",
                           folder, kHistoryFile));
}

}  // namespace

std::vector<NodeHistory> of_newest_job(std::vector<NodeHistory> all) {
  const auto newest = std::ranges::max_element(
      all, {}, [](const NodeHistory& node) { return node.rounds.front().began; });
  if (newest == all.end()) return {};
  const NodeHistory one = *newest;
  std::erase_if(all, [&](const NodeHistory& other) {
    if (other.folder == one.folder) return false;
    return is_alone(one) || other.run_id != one.run_id || is_alone(other) || !overlaps(one, other);
  });
  return all;
}

Result<std::vector<NodeHistory>> read_histories(const std::vector<std::string>& folders) {
  std::vector<NodeHistory> nodes;
  for (const std::string& folder : folders) {
    auto found = histories_at(folder);
    if (!found) return found.error();
    for (NodeHistory& node : *found) {
      if (!nodes.empty() && nodes.front().run_id != node.run_id)
        return Error(ErrorCode::kInvalidArgument,
                     fmt::format("report {}: expected the folders of one job: this is job {}, and "
                                 "{} is job {}",
                                 folder, node.run_id, nodes.front().folder, nodes.front().run_id));
      const bool is_known =
          std::ranges::find(nodes, node.folder, &NodeHistory::folder) != nodes.end();
      if (!is_known) nodes.push_back(std::move(node));
    }
  }
  return nodes;
}

}  // namespace ddprun::launcher
