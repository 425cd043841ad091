// The records of a leader of many jobs. They tell what etcd has of each, what is to be written, and
// when one is removed. A record says on which revision of its key it is written. An earlier write
// without an answer may be done late, and must not undo a newer one. Pure: an event and `now` go
// in, actions come out. It does not know etcd: JobRecordStore does, and owns it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/election/leadership.h"

namespace ddprun::rendezvous {

// The pause before a record is written again that etcd did not confirm.
inline constexpr std::chrono::milliseconds kRecordRetry{200};

class JobRecordTable {
 public:
  // Write the record, under the leader's guard, if it has this revision; 0: if it is not there.
  // Then written(), is_otherwise() or failed(); nothing, where this process leads no more.
  struct Write {
    Ticket ticket = 0;
    std::string rdzv_id;
    std::string value;  // empty: remove it
    std::int64_t if_revision = 0;
  };
  // The record that put() asked for last is in etcd.
  struct RecordWritten {
    std::string rdzv_id;
  };
  using Action = std::variant<Write, RecordWritten>;
  using Actions = std::vector<Action>;

  // Every function that returns actions: perform them, then call time_passed() at look_again_at().

  // The leader before left it.
  void found(const std::string& rdzv_id, std::int64_t revision);
  // A second call takes the place of one that is not done yet.
  Actions put(const std::string& rdzv_id, std::string value);
  // Unless something is put there until then.
  void remove_at(const std::string& rdzv_id, Time when);
  // `revision`: of the write; it does not matter where the record was removed.
  Actions written(Ticket ticket, std::int64_t revision);
  // Nothing was written: etcd has this record instead.
  Actions is_otherwise(Ticket ticket, const std::optional<KeyHolder>& record);
  // etcd cannot be asked.
  void failed(Ticket ticket, Time now);
  Actions time_passed(Time now);
  Time look_again_at() const;
  // This process leads no more. Answers that are under way are ignored.
  void clear() {
    records_.clear();
    due_.clear();
    under_way_.clear();
  }
  std::size_t size() const { return records_.size(); }

 private:
  struct Record {
    std::string value;          // as it is to be; empty: it is removed
    std::int64_t revision = 0;  // as etcd has it; 0: it is not there
    Ticket ticket = 0;          // of the last write that is not answered
    bool is_awaited = false;    // RecordWritten is to come
    Time write_at = Time::max();
    Time remove_at = Time::max();
    Time due = Time::max();  // the earlier of both, as in due_
  };
  using Entry = std::map<std::string, Record>::iterator;

  Entry find(Ticket ticket);
  Actions write(Entry entry);
  Actions done(Entry entry);
  void schedule(Entry entry);

  std::map<std::string, Record> records_;  // by rdzv id
  std::set<std::pair<Time, std::string>> due_;
  std::map<Ticket, std::string> under_way_;
  Ticket last_ = 0;
};

}  // namespace ddprun::rendezvous
