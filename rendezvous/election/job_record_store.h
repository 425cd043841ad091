// Reads and writes the records of a leader of many jobs in etcd: JobRecordTable with etcd and a
// timer. Each write compares the revision of the leader key; so a process that leads no more writes
// nothing.
//
// On the loop's thread only. Owned by Group (daemon), as the Election is.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/alarm.h"
#include "rendezvous/election/election.h"
#include "rendezvous/election/job_keys.h"
#include "rendezvous/election/job_record_table.h"

namespace ddprun::rendezvous {

// Another version may have written it, and lead again by then.
inline constexpr std::chrono::seconds kKeepSenseless{120};

class JobRecordStore {
 public:
  // `election` must outlive it. `refused` is called where etcd is reached and says no, and will
  // again: this process cannot lead. It may be called from any function below, and must not call
  // one.
  JobRecordStore(boost::asio::io_context& loop, Election& election, GroupKeys keys,
                 std::function<void(const Error&)> refused);
  JobRecordStore(const JobRecordStore&) = delete;
  JobRecordStore& operator=(const JobRecordStore&) = delete;
  ~JobRecordStore() = default;

  using Jobs = std::map<std::string, RecordedJob>;  // by rdzv id
  // This process leads from now on: reads what the leader before has left. A record that makes no
  // sense is left out, with a warning, and removed after kKeepSenseless. `found` is not called
  // where another leads meanwhile.
  void begin(std::function<void(Jobs)> found);
  // `recorded` is called when the record, or a later one for the same id, is in etcd. This process
  // must lead beyond doubt.
  void write(const std::string& rdzv_id, const RecordedJob& job, std::function<void()> recorded);
  // Removes the record after this time, unless it is written again.
  void forget(const std::string& rdzv_id, std::chrono::milliseconds after);
  // This process leads no more.
  void end();

 private:
  void read(std::string after);
  void take_over(const FoundRecord& one);
  bool may_ask_again(const Error& error);
  void perform(const JobRecordTable::Actions& actions);
  void perform(const JobRecordTable::Write& action);
  void perform(const JobRecordTable::RecordWritten& action);
  void answered(const JobRecordTable::Write& action, const Result<v3::TxnResponse>& response);

  Election& election_;
  const GroupKeys keys_;
  const std::function<void(const Error&)> refused_;
  Time tell_at_{};  // a problem, again
  JobRecordTable table_;
  std::map<std::string, std::vector<std::function<void()>>> recorded_;
  Alarm alarm_;
  // ---- while the records are read ----
  std::uint64_t term_ = 0;  // of this leadership: what an older one asked for is ignored
  std::string read_after_;
  Alarm read_again_;
  Jobs jobs_;
  std::function<void(Jobs)> found_;
};

}  // namespace ddprun::rendezvous
