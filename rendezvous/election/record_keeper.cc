#include "rendezvous/election/record_keeper.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "base/log.h"

namespace ddprun::rendezvous {
RecordKeeper::RecordKeeper(boost::asio::io_context& loop, Election& election, GroupKeys keys,
                           std::function<void(const Error&)> refused)
    : election_(election),
      keys_(std::move(keys)),
      refused_(std::move(refused)),
      alarm_(loop, [this] { perform(book_.time_passed(std::chrono::steady_clock::now())); }),
      read_again_(loop, [this] { read(read_after_); }) {}

void RecordKeeper::begin(std::function<void(Jobs)> found) {
  end();
  found_ = std::move(found);
  read("");
}

void RecordKeeper::end() {
  ++term_;
  book_.clear();
  recorded_.clear();
  jobs_.clear();
  found_ = {};
  alarm_.set(Time::max());
  read_again_.set(Time::max());
}

void RecordKeeper::read(std::string after) {
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
                              alarm_.set(book_.look_again_at());
                              const auto found_all = std::exchange(found_, {});
                              found_all(std::exchange(jobs_, {}));
                            });
}

void RecordKeeper::take_over(const FoundRecord& one) {
  book_.found(one.rdzv_id, one.record.revision);
  const auto job = decode_record(one.record.value);
  if (job) {
    jobs_.emplace(one.rdzv_id, *job);
    return;
  }
  book_.remove_at(one.rdzv_id, std::chrono::steady_clock::now() + kKeepSenseless);
  log::warning(fmt::format("{} (job {})", job.error().message(), one.rdzv_id));
}

// If etcd is silent, or says what nobody understands, another answer may come. A refusal stays: a
// role that may not read or write the records, say.
bool RecordKeeper::may_ask_again(const Error& error) {
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

void RecordKeeper::write(const std::string& rdzv_id, const RecordedJob& job,
                         std::function<void()> recorded) {
  recorded_[rdzv_id].push_back(std::move(recorded));
  perform(book_.put(rdzv_id, encode(job)));
}

void RecordKeeper::forget(const std::string& rdzv_id, std::chrono::milliseconds after) {
  book_.remove_at(rdzv_id, std::chrono::steady_clock::now() + after);
  alarm_.set(book_.look_again_at());
}

void RecordKeeper::perform(const RecordBook::Actions& actions) {
  for (const RecordBook::Action& action : actions)
    std::visit([this](const auto& one) { perform(one); }, action);
  alarm_.set(book_.look_again_at());
}

void RecordKeeper::perform(const RecordBook::Write& action) {
  const JobKeys keys = keys_.of_job(action.rdzv_id);
  const RecordGuard guard{election_.revision(), action.if_revision};
  election_.etcd().transact(action.value.empty() ? remove_record(keys, guard)
                                                 : write_record(keys, guard, action.value, 0),
                            [this, action, term = term_](const Result<v3::TxnResponse>& response) {
                              if (term == term_) answered(action, response);
                            });
}

// A silent etcd is asked again: the leader's lease tells how long that can go on.
void RecordKeeper::answered(const RecordBook::Write& action,
                            const Result<v3::TxnResponse>& response) {
  const auto answer = response ? decode_answer(*response, keys_.of_job(action.rdzv_id))
                               : Result<TransactionAnswer>(response.error());
  if (!answer) {
    if (!may_ask_again(answer.error())) return;
    book_.failed(action.ticket, std::chrono::steady_clock::now());
    return alarm_.set(book_.look_again_at());
  }
  if (answer->is_done) return perform(book_.written(action.ticket, answer->revision));
  if (!answer->leader || answer->leader->revision != election_.revision()) return election_.doubt();
  perform(book_.is_otherwise(action.ticket, answer->record));
}

// Nodes must not start a round that the next leader, of this moment, knows nothing of.
void RecordKeeper::perform(const RecordBook::Recorded& action) {
  const auto recorded = recorded_.extract(action.rdzv_id);
  if (recorded.empty() || !election_.may_grant()) return;
  for (const auto& tell : recorded.mapped()) tell();
}

}  // namespace ddprun::rendezvous
