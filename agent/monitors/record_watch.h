// Hears when a worker writes its error record (TORCHELASTIC_ERROR_FILE). Hears, too, if it still
// has not ended some time after that. Then an error is on record, and a teardown hangs in a
// collective or in a driver. A worker that goes on to step has caught its exception. It does not
// know whether the worker lives, and ends nothing. By inotify(7), so nothing polls. To close an
// inotify descriptor takes the kernel up to 15 ms. So an attempt shorter than a second opens none,
// and the attempts share one. Loop's thread. Owned by Agent.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/clock.h"
#include "base/alarm.h"
#include "base/loop.h"

namespace ddprun::agent {

class RecordWatch {
 public:
  struct Handlers {
    std::function<std::uint64_t(int local_rank)> steps;  // that the worker has done
    // `limit` after the record, if the worker has done no step since.
    std::function<void(int local_rank)> overdue;
  };

  // A limit of 0 turns it off.
  RecordWatch(asio::io_context& loop, std::chrono::milliseconds limit, Handlers handlers);

  // The workers of a new attempt have started; those before are forgotten. `paths`: of the error
  // file that each local rank would write, in a folder that is there. Empty if it has none. The
  // watch begins after a second, or after `limit` if that is shorter. A record that is there by
  // then counts from that moment. If the kernel gives no watch, nothing is watched.
  void begin(std::vector<std::string> paths);
  void end();

 private:
  using Stream = boost::asio::posix::stream_descriptor;

  struct RecordDeadline {
    Time due{};
    std::uint64_t steps = 0;
  };

  void watch();
  [[nodiscard]] bool open();
  void wait();
  void read();
  void recorded(int local_rank);
  void look();

  asio::io_context& loop_;
  const std::chrono::milliseconds limit_;
  const Handlers handlers_;
  std::optional<Stream> stream_;            // opened by the first attempt that needs it
  std::vector<std::string> paths_;          // of the attempt, until its watch begins
  std::map<int, int> watched_;              // by inotify's number: the local rank
  std::map<int, RecordDeadline> recorded_;  // by local rank
  Alarm alarm_;
  // A wait that is over can no longer be cancelled, and may be delivered after our end.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace ddprun::agent
