// The board on which ranks that share no memory write what they wait in, for the others to read. It
// lies in the job's store, or in a test's memory. desync_report.h has their conclusions. One thread
// at a time; calls block for a short time. A collective owns its own.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun::worker {

class DesyncBoard {
 public:
  DesyncBoard() = default;
  DesyncBoard(const DesyncBoard&) = delete;
  DesyncBoard& operator=(const DesyncBoard&) = delete;
  DesyncBoard(DesyncBoard&&) = delete;
  DesyncBoard& operator=(DesyncBoard&&) = delete;
  virtual ~DesyncBoard() = default;

  // This rank's text, instead of the one of before. At most a few KiB, not empty.
  virtual Result<void> post(std::string_view text) = 0;

  // The texts of these ranks, in the same order. Empty if that rank has posted none.
  virtual Result<std::vector<std::string>> read(std::span<const int> ranks) = 0;
};

}  // namespace ddprun::worker
