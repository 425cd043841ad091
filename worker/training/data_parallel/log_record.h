// The facts of DataParallel, under the keys of PyTorch's ddp_logging_data
// (torch/csrc/distributed/c10d/logger.cpp, 2.11).
#pragma once

#include <ddprun/log_record.h>

namespace ddprun::worker {

// Adds the variables that PyTorch's record has; "N/A" where one is not set, as there.
void write_environment(LogRecord& record);

}  // namespace ddprun::worker
