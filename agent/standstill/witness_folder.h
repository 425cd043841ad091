// The folder in which witnesses write their answers: the job's own. A question that came after ours
// is answered once for both, so a later answer will do. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "agent/processes/children.h"
#include "agent/standby/worker_pages.h"
#include "agent/standstill/witness_answer.h"

namespace ddprun::agent {

// Whether the worker that lives has a witness. `pages`: null if there are none.
bool has_witness(const WorkerPages* pages, const Children& children, int local_rank);

// The file of the first answer from question `number` on; that of `number` itself if none is there.
std::string witness_answer_path(const std::string& folder, const WorkerPages& pages, int local_rank,
                                std::uint64_t number);

// Nothing: none has come, or it is not whole.
std::optional<WitnessAnswer> read_witness_answer(const std::string& folder,
                                                 const WorkerPages& pages, int local_rank,
                                                 std::uint64_t number);

}  // namespace ddprun::agent
