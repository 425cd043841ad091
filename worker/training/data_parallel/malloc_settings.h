// Memory that is freed stays in the process, for the next gradient: see keep_freed_memory in
// data_parallel.h. No state of ours; any thread, before others allocate.
#pragma once

#include <string>

namespace ddprun::worker {

// Sets up malloc for the whole process, unless the environment does. Then it changes nothing, and
// gives the name of the variable. Empty if it is done.
std::string set_up_malloc();

}  // namespace ddprun::worker
