// Ends the process where nothing else can. A call of CUDA or NCCL may hang in the driver. Then it
// blocks the watcher, or the abort after a failure. PyTorch has its heartbeat monitor for that. The
// monitor is a thread that calls neither of both. If the watcher gets no answer for long, the
// communicator fails. If the abort is not over in time, this rank's records are written, and the
// process ends. Then the agent starts the workers anew.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "worker/collective/nccl/communicator.h"
#include "worker/collective/nccl/nccl_watcher.h"

namespace ddprun::worker {

// A rank's last words: why it ends, and its flight record.
using EndProcess =
    std::function<void(int rank, const std::string& why, const std::string& flight_record)>;

// Logs `why` and writes it to the file that TORCHELASTIC_ERROR_FILE names. Writes the flight record
// to the file that TORCH_FR_DUMP_TEMP_FILE begins, with the rank behind it, as PyTorch does. Then
// it ends the process with code 1, and runs no destructor.
[[noreturn]] void end_process_with_records(int rank, const std::string& why,
                                           const std::string& flight_record);

struct MonitorOptions {
  int rank = 0;
  std::chrono::milliseconds silence{};  // of the watcher's questions
  std::chrono::milliseconds abort{};
  EndProcess end_process;
};

// Starts the monitor of a communicator that has formed. It ends when the communicator has ended.
void watch_over(const MonitorOptions& options, std::shared_ptr<Communicator> communicator,
                std::shared_ptr<NcclWatcher> watcher);

}  // namespace ddprun::worker
