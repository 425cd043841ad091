#include "rendezvous/election/job_record_table.h"

#include <algorithm>
#include <utility>

namespace ddprun::rendezvous {

void JobRecordTable::found(const std::string& rdzv_id, std::int64_t revision) {
  records_[rdzv_id].revision = revision;
}

JobRecordTable::Actions JobRecordTable::put(const std::string& rdzv_id, std::string value) {
  const auto entry = records_.try_emplace(rdzv_id).first;
  entry->second.value = std::move(value);
  entry->second.is_awaited = true;
  entry->second.remove_at = Time::max();
  return write(entry);
}

void JobRecordTable::remove_at(const std::string& rdzv_id, Time when) {
  const auto entry = records_.find(rdzv_id);
  if (entry == records_.end()) return;
  entry->second.remove_at = when;
  schedule(entry);
}

// After each change of one of its times.
void JobRecordTable::schedule(Entry entry) {
  Record& record = entry->second;
  due_.erase({record.due, entry->first});
  record.due = std::min(record.write_at, record.remove_at);
  if (record.due < Time::max()) due_.emplace(record.due, entry->first);
}

JobRecordTable::Actions JobRecordTable::write(Entry entry) {
  Record& record = entry->second;
  record.ticket = ++last_;
  record.write_at = Time::max();
  schedule(entry);
  under_way_.emplace(record.ticket, entry->first);
  return {Write{record.ticket, entry->first, record.value, record.revision}};
}

// The record whose last write this is; the end if a newer one has taken its place.
JobRecordTable::Entry JobRecordTable::find(Ticket ticket) {
  const auto id = under_way_.extract(ticket);
  if (id.empty()) return records_.end();
  const auto entry = records_.find(id.mapped());
  const bool is_last = entry != records_.end() && entry->second.ticket == ticket;
  return is_last ? entry : records_.end();
}

JobRecordTable::Actions JobRecordTable::written(Ticket ticket, std::int64_t revision) {
  const auto entry = find(ticket);
  if (entry == records_.end()) return {};
  entry->second.revision = revision;
  return done(entry);
}

JobRecordTable::Actions JobRecordTable::done(Entry entry) {
  Record& record = entry->second;
  record.ticket = 0;
  Actions actions;
  if (std::exchange(record.is_awaited, false)) actions.push_back(RecordWritten{entry->first});
  if (record.value.empty()) {
    due_.erase({record.due, entry->first});
    records_.erase(entry);
  }
  return actions;
}

// If an earlier write was done after all, and wrote the same, all is well.
JobRecordTable::Actions JobRecordTable::is_otherwise(Ticket ticket,
                                                     const std::optional<KeyHolder>& record) {
  const auto entry = find(ticket);
  if (entry == records_.end()) return {};
  entry->second.revision = record ? record->revision : 0;
  const bool is_as_wanted = (record ? record->value : std::string()) == entry->second.value;
  return is_as_wanted ? done(entry) : write(entry);
}

void JobRecordTable::failed(Ticket ticket, Time now) {
  const auto entry = find(ticket);
  if (entry == records_.end()) return;
  entry->second.write_at = now + kRecordRetry;
  schedule(entry);
}

JobRecordTable::Actions JobRecordTable::time_passed(Time now) {
  Actions actions;
  // Each write takes its record out of due_.
  while (!due_.empty() && due_.begin()->first <= now) {
    const auto entry = records_.find(due_.begin()->second);
    Record& record = entry->second;
    if (now >= record.remove_at) {
      record.remove_at = Time::max();
      record.value.clear();
      record.is_awaited = false;
    }
    for (Action& action : write(entry)) actions.push_back(std::move(action));
  }
  return actions;
}

Time JobRecordTable::look_again_at() const {
  return due_.empty() ? Time::max() : due_.begin()->first;
}

}  // namespace ddprun::rendezvous
