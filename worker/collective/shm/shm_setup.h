// The way of a host's ranks to a segment that rank 0 has made. Rank 0 tells them the name, or why
// there is none. So nobody waits for a name until the deadline. ShmCollective uses it.
#pragma once

#include <string>

#include "worker/collective/shm/shm_collective.h"
#include "worker/collective/shm/shm_segment.h"

namespace ddprun::worker {

// A text that begins so is an error line, not the name of a segment. Names begin with a slash.
inline constexpr char kFailureMark = '!';

// The error's line, once it is logged. The other ranks may end as soon as they hear of it. Then the
// agent kills this process before it could log anything.
std::string logged(const Error& error);

// Returns rank 0's message to the others about the segment that it was to make.
std::string name_or_failure(const Result<ShmSegment>& segment);

// The control segment: rank 0 makes it, the others map it. Throws LoggedError if rank 0 cannot make
// it. The error is of the exchange, or says that the ranks run different builds.
Result<ShmSegment> set_up_control(const ShmJob& job, Exchange& exchange);

}  // namespace ddprun::worker
