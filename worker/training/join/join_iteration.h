// The conclusion from the reports of the ranks before an iteration of a Join. Pure.
#pragma once

#include <ddprun/join.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace ddprun::worker {

// `reports`: by rank, what JoinReport has as bytes. Throws std::invalid_argument for other bytes.
JoinIteration read_reports(std::span<const std::vector<std::byte>> reports);

// Returns why a rank throws when all shall as soon as one has no more batches; the beginning is
// PyTorch's. Empty if it goes on.
std::string early_end(const JoinIteration& round, int rank, bool active);

}  // namespace ddprun::worker
