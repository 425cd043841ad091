// Reads what the nodes of a job have left in their log folders. File system shell; only reads. Main
// thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/report/history.h"

namespace ddprun::launcher {

// The name of the file, in a job's log folder.
inline constexpr const char* kHistoryFile = "history.jsonl";
// The most of a history that is read, and the most folders of jobs in a --log-dir.
inline constexpr std::size_t kMostHistoryBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMostJobFolders = 10'000;

// Each folder is one of a job, or a --log-dir. There the newest job is meant, with the folders of
// all nodes that took part in it. Errors (kInvalidArgument) name the folder: there is no history
// in it, or it is another job's.
Result<std::vector<NodeHistory>> read_histories(const std::vector<std::string>& folders);

// Returns those of `all`, the jobs of one --log-dir, that are of its newest job. Pure.
std::vector<NodeHistory> of_newest_job(std::vector<NodeHistory> all);

}  // namespace ddprun::launcher
