// The file of --strike-file, which carries strikes from one job to the next. Each node may have its
// own, or all the same. The first line has the time, the others are a text of Strikes
// (rendezvous/core/strikes.h). Loop's thread.
#pragma once

#include <string>

#include "base/result.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

class StrikeFile {
 public:
  // Empty: there is none.
  explicit StrikeFile(std::string path) : path_(std::move(path)) {}

  // Takes what an earlier job left. A file that is not there is none yet. Errors are one line with
  // flag, path, line, and what is accepted.
  Result<void> read(const rendezvous::StrikeRules& rules);
  // The strikes that the node knows of, as text.
  const std::string& text() const { return text_; }
  // The rendezvous told of these: they are kept, and written if there is a file. Errors name flag
  // and path.
  Result<void> keep(const std::string& text);

 private:
  const std::string path_;
  std::string text_;
};

}  // namespace ddprun::agent
