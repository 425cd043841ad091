// Whether the attempts of a job get anywhere. Pure. One per job; Membership owns it and uses it on
// its thread.
//
// An attempt makes progress if it ends a step beyond the best one of all attempts. A step of the
// whole run (--progress) says so. A step that is counted from the worker's first line does not: the
// program may have begun at a checkpoint. Then any step is taken for progress, and none is not. A
// failure without a step begins the row anew, since nobody knows how far that attempt came.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/rendezvous.h"

namespace ddprun::rendezvous {

// Returns the name of the exception in the line with which Python ends a traceback. That is
// "OutOfMemoryError" of "torch.OutOfMemoryError: no memory". Empty: the line names none.
std::string_view exception_of(std::string_view line);

// Says what failed attempts have in common, and who is to blame as far as that tells. One clause
// for people. `is_all`: there were no other ones. `nodes`: of the job's rounds. `attempts` must not
// be empty.
std::string common_sentence(const std::vector<FailedAttempt>& attempts, bool is_all, int nodes);

class ProgressWatch {
 public:
  // A failure ended the attempt of `round`, which had so many nodes.
  void attempt_failed(std::int64_t round, int nodes, const Failure& cause);
  // Returns the last attempts if so many in a row made no progress. Nothing if `most` is 0.
  std::optional<NoProgress> stuck(int most) const;

 private:
  bool has_moved(const Failure& cause) const;

  std::vector<FailedAttempt> row_;  // its last ones, kMostShownAttempts at most
  int in_a_row_ = 0;
  int failed_ = 0;         // attempts of the job
  int nodes_ = 1;          // the most of a round in the row
  std::int64_t best_ = 0;  // step of the run
};

}  // namespace ddprun::rendezvous
