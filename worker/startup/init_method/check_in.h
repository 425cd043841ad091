// The keys of ranks that meet at a file: who is there, and how the start ended. They stand in the
// store of rank 0. It ends once, with the same line for all: all ranks are there, or why they never
// will be. Blocks the calling thread, for a bounded time. One thread at a time.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/client.h"
#include "worker/startup/init_method/init_file.h"
#include "worker/startup/init_method/init_record.h"

namespace ddprun::worker {

// The key in the store of that start.
std::string init_key(const InitRecord& record, std::string_view name);

// Errors of every call: rank 0 and its store are gone, or the line with which the start ended.
class CheckIn {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // `client` talks to the store of `record`. `file` must outlive this object.
  CheckIn(store::Client client, const InitFile& file, InitRecord record, int rank);

  // Takes the place of this rank. False if all had met before it came, so it belongs to another
  // run.
  Result<bool> arrive(const HostId& here);
  // "rank 1, 3 of 4 has not come yet", for a line of a wait.
  std::string absent_text();
  // Returns whether all are there by `until`. An error: they never will be.
  Result<bool> all_here_by(Deadline until);
  // Ends the start for all, with `why`. Success: all were there in this very moment.
  Result<void> end(ErrorCode code, const std::string& why);
  // Ends it because this rank has waited for `timeout`; the line names who did not come.
  Result<void> end_late(std::chrono::milliseconds timeout);
  // By rank. All of them are there.
  Result<std::vector<HostId>> hosts();

 private:
  std::string place(int rank) const;
  Result<bool> is_there(int rank);
  Result<std::vector<int>> absent();
  std::string heard(int rank) const;
  Error lost(const Error& cause) const;
  Result<bool> come_twice(const Arrival& mine, const std::string& held);
  Error failure(ErrorCode code, const std::string& why);
  void await_heard();

  store::Client client_;
  const InitFile& file_;
  InitRecord record_;
  int rank_;
  bool has_arrived_ = false;
};

}  // namespace ddprun::worker
