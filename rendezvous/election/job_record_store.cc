#include "rendezvous/election/job_record_store.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "base/log.h"

namespace ddprun::rendezvous {
JobRecordStore::JobRecordStore(boost::asio::io_context& loop, Election& election, GroupKeys keys,
                               std::function<void(const Error&)> refused)
    : election_(election),
      keys_(std::move(keys)),
      refused_(std::move(refused)),
      alarm_(loop, [this] { perform(table_.time_passed(std::chrono::steady_clock::now())); }),
      read_again_(loop, [this] { read(read_after_); }) {}

void JobRecordStore::begin(std::function<void(Jobs)> found) {
  end();
  found_ = std::move(found);
  read("");
}

void JobRecordStore::end() {
  ++term_;
  table_.clear();
  recorded_.clear();
  jobs_.clear();
  found_ = {};
  alarm_.set(Time::max());
  read_again_.set(Time::max());
}

void JobRecordStore::read(std::string after) {
  read_after_ = std::move(after);
  election_.etcd().transact(read_records(keys_, election_.revision(), read_after_),
                            [this, term = term_](const Result<v3::TxnResponse>& response) {
                              if (term != term_) return;
                              auto page = response ? decode_records(*response, keys_)
                                                   : Result<FoundRecords>(response.error());
                              if (!page) {
                                if (may_ask_again(page.error()))
                                  read_again_.set(std::chrono::steady_clock::now() + kRecordRetry);
                                return;
                              }
                              if (!page->is_done) return election_.doubt();
                              for (const FoundRecord& one : page->records) take_over(one);
                              if (page->has_more) return read(page->last);
                              alarm_.set(table_.look_again_at());
                              const auto found_all = std::exchange(found_, {});
                              found_all(std::exchange(jobs_, {}));
                            });
}

void JobRecordStore::take_over(const FoundRecord& one) {
  table_.found(one.rdzv_id, one.record.revision);
  const auto job = decode_record(one.record.value);
  if (job) {
    jobs_.emplace(one.rdzv_id, *job);
    return;
  }
  table_.remove_at(one.rdzv_id, std::chrono::steady_clock::now() + kKeepSenseless);
  log::warning(fmt::format("{} (job {})", job.error().message(), one.rdzv_id));
}

// If etcd is silent, or says what nobody understands, another answer may come. A refusal stays: a
// role that may not read or write the records, say.
bool JobRecordStore::may_ask_again(const Error& error) {
  if (error.code() == ErrorCode::kRejected) {
    refused_(
        {error.code(), fmt::format("etcd, the records at {}: {}", keys_.records, error.message())});
    return false;
  }
  if (std::chrono::steady_clock::now() >= tell_at_) {
    tell_at_ = std::chrono::steady_clock::now() + kProblemEvery;
    log::warning(fmt::format("the records of the jobs at {} in etcd: {}; asking again",
                             keys_.records, error.message()));
  }
  return true;
}

void JobRecordStore::write(const std::string& rdzv_id, const RecordedJob& job,
                           std::function<void()> recorded) {
  recorded_[rdzv_id].push_back(std::move(recorded));
  perform(table_.put(rdzv_id, encode(job)));
}

void JobRecordStore::forget(const std::string& rdzv_id, std::chrono::milliseconds after) {
  table_.remove_at(rdzv_id, std::chrono::steady_clock::now() + after);
  alarm_.set(table_.look_again_at());
}

void JobRecordStore::perform(const JobRecordTable::Actions& actions) {
  for (const JobRecordTable::Action& action : actions)
    std::visit([this](const auto& one) { perform(one); }, action);
  alarm_.set(table_.look_again_at());
}

void JobRecordStore::perform(const JobRecordTable::Write& action) {
  const JobKeys keys = keys_.of_job(action.rdzv_id);
  const RecordGuard guard{election_.revision(), action.if_revision};
  election_.etcd().transact(action.value.empty() ? remove_record(keys, guard)
                                                 : write_record(keys, guard, action.value, 0),
                            [this, action, term = term_](const Result<v3::TxnResponse>& response) {
                              if (term == term_) answered(action, response);
                            });
}

// A silent etcd is asked again: the leader's lease tells how long that can go on.
void JobRecordStore::answered(const JobRecordTable::Write& action,
                              const Result<v3::TxnResponse>& response) {
  const auto answer = response ? decode_answer(*response, keys_.of_job(action.rdzv_id))
                               : Result<TransactionAnswer>(response.error());
  if (!answer) {
    if (!may_ask_again(answer.error())) return;
    table_.failed(action.ticket, std::chrono::steady_clock::now());
    return alarm_.set(table_.look_again_at());
  }
  if (answer->is_done) return perform(table_.written(action.ticket, answer->revision));
  if (!answer->leader || answer->leader->revision != election_.revision()) return election_.doubt();
  perform(table_.is_otherwise(action.ticket, answer->record));
}

// Nodes must not start a round that the next leader, of this moment, knows nothing of.
void JobRecordStore::perform(const JobRecordTable::RecordWritten& action) {
  const auto recorded = recorded_.extract(action.rdzv_id);
  if (recorded.empty() || !election_.may_grant()) return;
  for (const auto& tell : recorded.mapped()) tell();
}

}  // namespace ddprun::rendezvous
