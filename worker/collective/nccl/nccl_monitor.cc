#include "worker/collective/nccl/nccl_monitor.h"

#include <ddprun/collective.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/duration.h"
#include "base/log.h"
#include "worker/collective/core/record_file.h"
#include "worker/collective/nccl/quiet_thread.h"

namespace ddprun::worker {
namespace {

// Between two looks at the watcher.
constexpr std::chrono::milliseconds kLongestLookPause{1'000};

std::string reason_of(const Communicator& communicator) {
  try {
    communicator.check();
  } catch (const CollectiveError& error) {
    return error.what();
  }
  return {};
}

// Empty if it is not set.
std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): the process ends
  return value == nullptr ? "" : value;
}

void monitor(const MonitorOptions& options, Communicator& communicator, NcclWatcher& watcher) {
  pthread_setname_np(pthread_self(), "nccl_monitor");
  const auto pause =
      std::min(kLongestLookPause, std::max(options.silence / 4, kLongestLookPause / 100));
  while (!communicator.wait_for_failure_or_end(pause)) {
    const auto silence = watcher.silence();
    if (silence < options.silence) continue;
    communicator.fail(
        fmt::format("rank {}: CUDA has not answered for {} s: no operation can be watched",
                    options.rank, in_seconds(silence)));
  }
  if (communicator.wait_for_end(options.abort) || communicator.given_up()) return;
  const char* because = communicator.is_in_graphs()
                            ? "the program keeps CUDA graphs with its operations, or the GPU hangs"
                            : "the GPU hangs";
  options.end_process(
      options.rank,
      fmt::format("{}; NCCL is not aborted after {} s: {}, and so this process ends",
                  reason_of(communicator), in_seconds(options.abort), because),
      watcher.flight_record());
}

void write(const std::string& path, const std::string& text) {
  if (const auto failed = write_record_file(path, text))
    log::error(fmt::format("write {}: {}", path, failed.message()));
}

}  // namespace

void watch_over(const MonitorOptions& options, std::shared_ptr<Communicator> communicator,
                std::shared_ptr<NcclWatcher> watcher) {
  start_without_signals([options, communicator = std::move(communicator),
                         watcher = std::move(watcher)] {
    monitor(options, *communicator, *watcher);
  }).detach();
}

// The error file has the form that torch/distributed/elastic/multiprocessing/errors of 2.11 writes.
void end_process_with_records(int rank, const std::string& why, const std::string& flight_record) {
  log::error(why);
  if (const std::string path = variable("TORCHELASTIC_ERROR_FILE"); !path.empty()) {
    const nlohmann::json text{
        {"message",
         {{"message", why}, {"extraInfo", {{"timestamp", std::to_string(std::time(nullptr))}}}}}};
    write(path, text.dump());
  }
  if (const std::string path = variable("TORCH_FR_DUMP_TEMP_FILE"); !path.empty())
    write(path + std::to_string(rank), flight_record);
  ::_exit(1);
}

}  // namespace ddprun::worker
