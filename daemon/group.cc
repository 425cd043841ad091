#include "daemon/group.h"

#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <limits>
#include <utility>

#include "base/log.h"

namespace ddprun::daemon {

using rendezvous::Leader;

namespace {

// A standby waits as long as it must, for etcd and for its turn.
constexpr std::chrono::hours kForEver{24 * 365 * 100};
// The shortest lease that etcd gives. If its own leader is lost as well, etcd begins to count anew
// once it has another. A leader that is in doubt by it takes its key again, and no worker is ended.
constexpr std::chrono::seconds kLease{2};
// No node ends its workers in it: it is for clocks that do not run alike.
constexpr std::chrono::milliseconds kMargin{300};
constexpr std::chrono::milliseconds kLookEvery{1000};

rendezvous::ElectionOptions election_of(const GroupOptions& options) {
  return {.etcd = options.etcd,
          .prefix = rendezvous::group_prefix(options.prefix),
          .rdzv_id = options.name,
          .hostname = options.self.hostname,
          .contact_limit = kForEver,
          .search_limit = kForEver,
          .look_while_following = kLookEvery,
          .retakes = true,
          .lease = kLease,
          .margin = kMargin,
          .listens_at = options.self};
}

std::string text_of(const Leader& leader) {
  const bool is_v6 = leader.address.find(':') != std::string::npos;
  return fmt::format(fmt::runtime(is_v6 ? "[{}]:{} ({})" : "{}:{} ({})"), leader.address,
                     leader.port, leader.hostname);
}

}  // namespace

Group::Group(asio::io_context& loop, const GroupOptions& options, Handlers handlers)
    : loop_(loop),
      self_(options.self),
      handlers_(std::move(handlers)),
      election_(loop, election_of(options),
                {.own_address = [this] { return Result<Leader>(self_); },
                 .lead = [this](const rendezvous::JobRecord&) { lead(); },
                 .follow = [this](const Leader& leader) { follow(leader); },
                 .lost_leadership = [this](const std::string& why, bool) { lost_leadership(why); },
                 .job_over = [](bool) {},  // no job is led by this key
                 .failed = [this](const Error& error) { handlers_.failed(error); }}),
      records_(loop, election_, rendezvous::group_keys(options.prefix, options.name),
               [this](const Error& error) { refused(error); }) {
  election_.start();
}

std::string Group::who_leads() const {
  const std::string who =
      leader_ ? text_of(*leader_) + " leads" : std::string("nobody leads at the moment");
  const std::string& problem = election_.problem();
  return problem.empty() ? who : fmt::format("{} (etcd: {})", who, problem);
}

void Group::lead() {
  probe_.reset();
  leader_.reset();
  records_.begin([this](rendezvous::JobRecordStore::Jobs jobs) {
    is_ready_ = true;
    handlers_.lead(std::move(jobs));
  });
}

void Group::follow(const Leader& leader) {
  if (leader_ != leader)
    log::info("this ddprund waits as a standby; " + text_of(leader) + " leads");
  leader_ = leader;
  // Refused: its process is dead. The election looks at it once more, and takes its key.
  probe_ = std::make_unique<LivenessProbe>(
      loop_,
      std::vector{asio::ip::tcp::endpoint(asio::ip::make_address(leader.address), leader.port)},
      [this] { election_.leader_lost(); }, std::numeric_limits<int>::max(), Haste::kBelieveAtOnce);
}

void Group::lost_leadership(const std::string& why) {
  records_.end();
  is_ready_ = false;
  handlers_.step_down(why);
  election_.leader_lost();
}

// Another may do better: it need not wait for the end of our lease.
void Group::refused(const Error& error) {
  if (std::exchange(is_refused_, true)) return;
  asio::post(loop_, [this, error] { resign([this, error] { handlers_.failed(error); }); });
}

void Group::write(const std::string& rdzv_id, rendezvous::RecordedJob job,
                  std::function<void()> recorded) {
  job.record.leader = self_.hostname;
  records_.write(rdzv_id, job, std::move(recorded));
}

void Group::forget(const std::string& rdzv_id, std::chrono::milliseconds after) {
  records_.forget(rdzv_id, after);
}

void Group::resign(std::function<void()> done) {
  is_ready_ = false;
  probe_.reset();
  records_.end();
  election_.resign(std::move(done));
}

}  // namespace ddprun::daemon
