// How far an attempt came, for the rendezvous (rendezvous/core/progress.h). The workers' pages
// count steps. With --progress the program writes its step into a file itself. That counts where it
// has done so. If the file does not answer, nobody waits for it long, and one line says so. Loop's
// thread; owned by Agent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/incident.h"
#include "base/file_look.h"

namespace ddprun::agent {

// Returns the whole number with which the text begins, spaces left out. Nothing: it begins with
// none.
std::optional<std::int64_t> step_in(const std::string& text);

class AttemptProgress {
 public:
  // `path`: of --progress; empty: none. An earlier job wrote the present text.
  // `from_the_first`: attempts of a program that has a page count before it ever made a step.
  AttemptProgress(std::string path, bool from_the_first);

  // Says in `failure` how far the attempt has come. Call it when the attempt fails, with its
  // workers' pages.
  void tell(rendezvous::Failure& failure, const std::vector<WorkerProgress>& workers);

 private:
  // Nothing if the program has written no step since the job began, or not on this node.
  std::optional<std::int64_t> step_in_file();

  const std::string path_;
  const bool from_the_first_;
  FileLook file_;
  std::optional<FileContent> before_;  // of the look with which this began
  bool has_warned_ = false;
  bool has_counted_ = false;  // a worker of the job has made a step
};

}  // namespace ddprun::agent
