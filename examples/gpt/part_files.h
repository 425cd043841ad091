// Checkpoints of a model that is in parts. A folder has one folder for a step, with a file for each
// part. The file `latest` names a step whose files are all there. So a kill at any moment leaves a
// whole checkpoint. All workers must call the same, and see the same folder.
#pragma once

#include <ddprun/checkpoint.h>
#include <ddprun/collective.h>
#include <fmt/format.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "base/numbers.h"
#include "examples/common/program.h"

namespace ddprun::examples {

class PartFiles {
 public:
  // `folder` empty: nothing is saved. `part`: the number of this worker's part. `about`: what a
  // run must have in common with the one that saved.
  PartFiles(std::filesystem::path folder, Collective& all, int part, std::string about)
      : folder_(std::move(folder)), all_(all), part_(part), about_(std::move(about)) {}

  // Loads the latest checkpoint, if there is one. Returns its step, else 0. Throws UsageError for
  // one of another run.
  int resume(const CheckpointRun& run) const {
    const std::string latest = latest_of_rank_0();
    if (latest.empty()) return 0;
    const std::size_t space = std::min(latest.find(' '), latest.size());
    const auto step = parse_whole<int>(latest.substr(0, space));
    if (!step || latest.substr(space) != " " + about_)
      throw UsageError(fmt::format("--checkpoint: {} has a run '{}', expected '{}'",
                                   folder_.string(), latest, about_));
    load_checkpoint(file_of(*step), run);
    all_.barrier();
    return *step;
  }

  void save(const CheckpointRun& run, int step) const {
    if (folder_.empty()) return;
    std::filesystem::create_directories(file_of(step).parent_path());
    save_checkpoint(file_of(step), run, {.epoch = step, .arch = "gpt"});
    all_.barrier();  // all parts are there
    if (all_.rank() == 0) make_latest(step);
  }

 private:
  static constexpr const char* kSteps = "step-";

  std::filesystem::path file_of(int step) const {
    return folder_ / (kSteps + std::to_string(step)) / fmt::format("part-{}.pt", part_);
  }

  std::string latest_of_rank_0() const {
    std::string text;
    if (all_.rank() == 0 && !folder_.empty()) {
      std::ifstream file(folder_ / "latest");
      text.assign(std::istreambuf_iterator<char>(file), {});
    }
    const auto bytes = all_.from_root(std::as_bytes(std::span(text)), 0);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // Names the step, and removes the others.
  void make_latest(int step) const {
    const auto written = folder_ / "latest.new", latest = folder_ / "latest";
    std::ofstream file(written);
    file << step << ' ' << about_;
    file.close();
    if (!file) throw CheckpointError("write " + written.string() + " failed", true);
    std::filesystem::rename(written, latest);
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const bool of_a_step = entry.path().filename().string().starts_with(kSteps);
      if (of_a_step && entry.path() != file_of(step).parent_path())
        std::filesystem::remove_all(entry.path());
    }
  }

  std::filesystem::path folder_;
  Collective& all_;
  int part_;
  std::string about_;
};

}  // namespace ddprun::examples
