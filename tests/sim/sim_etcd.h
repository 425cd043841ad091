// etcd as the leaders of a simulated job see it: two keys, leases, revisions and transactions. An
// answer takes time, may be lost although the request was done, and there is none while etcd is
// away. It may forget its old revisions (compaction): nobody can watch from them any more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/recovery.h"
#include "rendezvous/election/leadership.h"
#include "tests/sim/virtual_time.h"

namespace ddprun::sim {

using rendezvous::KeyHolder;
using rendezvous::LeaseId;

class SimEtcd {
 public:
  struct Record {
    rendezvous::JobRecord job;
    std::int64_t revision = 0;
    std::optional<bool> succeeded;  // of a job that is over
  };
  struct Answer {
    bool is_done = false;
    std::int64_t revision = 0;
    std::optional<KeyHolder> leader;
    std::optional<Record> record;
  };
  // Nothing if no answer came.
  using Answered = std::function<void(const std::optional<Answer>&)>;

  SimEtcd(VirtualTime& time, int most_delay_ms, milliseconds lease)
      : time_(time), most_delay_ms_(most_delay_ms), lease_(lease) {}

  milliseconds lease() const { return lease_; }

  // The watchers are told, as by members that find no leader of theirs.
  void away(milliseconds length) {
    away_until_ = std::max(away_until_, time_.now() + length);
    for (Watcher& watcher : std::exchange(watchers_, {})) end(watcher);
  }
  void loses_answers(bool loses) { loses_answers_ = loses; }
  // From now on, now and then.
  void compacts() {
    time_.after(time_.up_to(kCompactsWithinMs), [this] {
      compacted_ = revision_;
      ++compactions_;
      compacts();
    });
  }

  void read(bool is_reached, Answered answered) {
    ask(
        is_reached, [this] { return answer(true); }, std::move(answered));
  }
  void grant(bool is_reached, std::function<void(std::optional<LeaseId>)> answered) {
    auto lease = std::make_shared<LeaseId>(0);
    ask(
        is_reached,
        [this, lease] {
          *lease = ++last_lease_;
          prolong(*lease);
          return answer(true);
        },
        [lease, answered = std::move(answered)](const std::optional<Answer>& is) {
          answered(is ? std::optional(*lease) : std::nullopt);
        });
  }
  // is_done: the lease was there still.
  void keep_alive(bool is_reached, LeaseId lease, Answered answered) {
    ask(
        is_reached,
        [this, lease] {
          const bool is_there = leases_.contains(lease);
          if (is_there) prolong(lease);
          return answer(is_there);
        },
        std::move(answered));
  }
  void take_key(bool is_reached, const std::string& value, LeaseId lease, std::int64_t if_revision,
                Answered answered) {
    ask(
        is_reached,
        [this, value, lease, if_revision] {
          if ((leader_ ? leader_->revision : 0) != if_revision || !leases_.contains(lease))
            return answer(false);
          overtaken_.insert(if_revision);
          leader_ = {.value = value, .revision = ++revision_, .lease = lease};
          key_changed_ = revision_;
          changed();
          return answer(true);
        },
        std::move(answered));
  }
  void release_key(bool is_reached, std::int64_t revision) {
    ask(
        is_reached,
        [this, revision] {
          if (!leader_ || leader_->revision != revision) return answer(false);
          leader_.reset();
          key_changed_ = ++revision_;
          changed();
          return answer(true);
        },
        [](const std::optional<Answer>&) {});
  }
  // `held`: so long the network keeps the request before it brings it here.
  void write_record(bool is_reached, const Record& record, std::int64_t if_leader,
                    std::int64_t if_record, milliseconds held, Answered answered) {
    ask(
        is_reached,
        [this, record, if_leader, if_record] {
          const bool is_as_known = leader_ && leader_->revision == if_leader &&
                                   (record_ ? record_->revision : 0) == if_record;
          if (!is_as_known) return answer(false);
          // A write that was on its way takes back no end.
          const auto succeeded = record_ ? record_->succeeded : std::nullopt;
          record_ = record;
          record_->revision = ++revision_;
          if (succeeded) record_->succeeded = succeeded;
          return answer(true);
        },
        std::move(answered), held);
  }
  // The last word of a leader that tells its nodes first: known at once, if it has the key.
  void job_ended(std::int64_t if_leader, bool succeeded) {
    if (!leader_ || leader_->revision != if_leader) return;
    if (!record_) record_.emplace();
    record_->succeeded = succeeded;
  }
  // Once, one of them is called. The key changes in this revision or later, or it cannot be watched
  // from there (after the pause of EtcdClient).
  void watch(std::int64_t from_revision, std::function<void()> changed,
             std::function<void()> ended) {
    Watcher watcher{std::move(changed), std::move(ended)};
    const bool is_forgotten = from_revision < compacted_;
    dead_watches_ += is_forgotten ? 1 : 0;
    if (is_forgotten || time_.now() < away_until_) return end(watcher);
    if (key_changed_ >= from_revision) return tell(watcher);
    watchers_.push_back(std::move(watcher));
  }

  const std::optional<KeyHolder>& leader() const { return leader_; }
  // The key had this revision, and another took it before the lease of its holder ended.
  bool is_overtaken(std::int64_t revision) const { return overtaken_.contains(revision); }
  const std::optional<Record>& record() const { return record_; }
  int compactions() const { return compactions_; }
  int dead_watches() const { return dead_watches_; }  // ended since they began too early

 private:
  static constexpr int kCompactsWithinMs = 10'000;
  static constexpr int kWatchDelayMs = 150;  // etcd answers first, and then tells those who watch

  Answer answer(bool is_done) const {
    return {.is_done = is_done, .revision = revision_, .leader = leader_, .record = record_};
  }
  void ask(bool is_reached, std::function<Answer()> act, Answered answered,
           milliseconds held = milliseconds(0)) {
    const milliseconds silence{500 + time_.draw(1500)};
    if (!is_reached) return time_.after(silence, [answered] { answered(std::nullopt); });
    time_.after(held + time_.up_to(most_delay_ms_), [this, silence, act, answered] {
      if (time_.now() < away_until_)
        return time_.after(silence, [answered] { answered(std::nullopt); });
      const Answer is = act();
      if (loses_answers_ && time_.one_in(20))
        return time_.after(silence, [answered] { answered(std::nullopt); });
      time_.after(time_.up_to(most_delay_ms_), [answered, is] { answered(is); });
    });
  }
  // A lease that nobody renews ends, and the key with it.
  void prolong(LeaseId lease) {
    const Time ends = time_.now() + lease_;
    leases_[lease] = ends;
    time_.at(ends, [this, lease, ends] {
      const auto found = leases_.find(lease);
      if (found == leases_.end() || found->second != ends) return;
      leases_.erase(found);
      if (!leader_ || leader_->lease != lease) return;
      leader_.reset();
      key_changed_ = ++revision_;
      changed();
    });
  }
  struct Watcher {
    std::function<void()> changed;
    std::function<void()> ended;
  };
  void changed() {
    for (Watcher& watcher : std::exchange(watchers_, {})) tell(watcher);
  }
  void tell(Watcher& watcher) {
    time_.after(time_.up_to(std::max(most_delay_ms_, kWatchDelayMs)), std::move(watcher.changed));
  }
  void end(Watcher& watcher) { time_.after(milliseconds(300), std::move(watcher.ended)); }

  VirtualTime& time_;
  const int most_delay_ms_;
  const milliseconds lease_;
  std::int64_t revision_ = 1;
  std::int64_t key_changed_ = 0;  // in this revision
  std::int64_t compacted_ = 0;    // what was before is forgotten
  int compactions_ = 0;
  int dead_watches_ = 0;
  std::set<std::int64_t> overtaken_;
  LeaseId last_lease_ = 0;
  std::map<LeaseId, Time> leases_;
  std::optional<KeyHolder> leader_;
  std::optional<Record> record_;
  std::vector<Watcher> watchers_;
  Time away_until_{};
  bool loses_answers_ = false;
};

}  // namespace ddprun::sim
