#include "worker/startup/init_method/file_init.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include "base/blocking_wait.h"
#include "base/duration.h"
#include "store/client.h"
#include "worker/startup/init_method/check_in.h"
#include "worker/startup/init_method/init_file.h"
#include "worker/startup/init_method/init_record.h"
#include "worker/startup/init_method/own_address.h"
#include "worker/startup/init_method/rank_places.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
using std::chrono::milliseconds;

// A rank 0 that is busy answers within this; one that does not is asked again, until the deadline.
constexpr milliseconds kProbeTime{1000};
// For one request to a store that has answered before.
constexpr std::chrono::seconds kRequestTime{30};
// How often rank 0 looks whether the file is still its own: somebody may clean up the folder.
constexpr milliseconds kHoldTime{1000};
// A wait for the file is that of inotify, which tells nothing of other hosts' files. So it is cut
// short, each time later. Files of this host are known at once, and a file server is asked twice a
// second at most.
constexpr milliseconds kFirstLook{20};
constexpr milliseconds kLastLook{500};

struct ProbeLeader {
  StoreAnswer heard = StoreAnswer::kNobody;
  std::optional<store::Client> client;  // where it is the store of the record
};

ProbeLeader probe_at(const InitRecord& record, const std::string& address) {
  // The client itself tries a refused connection again, and an answer of nobody must be quick.
  const auto socket =
      store::BlockingSocket::connect(address, record.port, Clock::now() + kProbeTime);
  if (!socket) {
    const bool is_silent = socket.error().code() == ErrorCode::kTimedOut;
    return {is_silent ? StoreAnswer::kSilence : StoreAnswer::kNobody, {}};
  }
  auto client = store::Client::connect(address, record.port, kProbeTime);
  if (!client) return {StoreAnswer::kSilence, {}};
  const std::array key{init_key(record, "served")};
  const auto served = client->check(key);
  if (!served) return {StoreAnswer::kSilence, {}};
  if (!*served) return {StoreAnswer::kNobody, {}};
  client->set_limit(kRequestTime);
  return {StoreAnswer::kItsStore, std::move(*client)};
}

// One rank that meets the others.
class RankAtFile {
 public:
  RankAtFile(WorkerEnv& world, const FileInitMethod& by_file)
      : world_(world),
        timeout_(by_file.timeout),
        end_(Clock::now() + by_file.timeout),
        file_(by_file.path, by_file.named) {}

  Result<std::unique_ptr<OwnStore>> lead();
  Result<std::unique_ptr<OwnStore>> follow();

 private:
  std::string job() const;
  Result<void> describe();
  Result<void> hold();
  Result<void> replace(const std::string& text);
  Result<void> meet_as_rank0(store::Client client);
  Result<bool> join_by(const std::string& text);
  Result<bool> join(const InitRecord& record);
  Result<void> place(CheckIn& check_in);
  std::string trace() const;
  Error rank0_absent() const;
  std::string at_file(std::string_view what) const;

  WorkerEnv& world_;
  milliseconds timeout_;
  Deadline end_;
  BlockingWait wait_;
  InitFile file_;
  HostId here_ = this_host();
  InitRecord record_;  // rank 0: its own; else the last one that was read, without an id before
};

// An attempt of a job is one of its own.
std::string RankAtFile::job() const {
  if (world_.run_id.empty() || world_.run_id == "none") return {};
  return fmt::format("{}.{}", world_.run_id, world_.restart_count);
}

Result<void> RankAtFile::describe() {
  record_ = {.id = fresh_id(),
             .ranks = world_.world_size,
             .job = job(),
             .host = here_,
             .process = ::getpid(),
             .address = "127.0.0.1",
             .port = world_.master_port};
  if (world_.local_world_size == world_.world_size) return boost::system::in_place_value;
  const auto interfaces = interface_addresses();
  if (!interfaces) return interfaces.error();
  const auto address =
      choose_address(*interfaces, {.interfaces = named_interfaces(), .towards_store = {}});
  if (address) record_.address = *address;
  // With loopback alone the ranks may be on this host all the same.
  if (!address && address.error().code() != ErrorCode::kNotFound) return address.error();
  return boost::system::in_place_value;
}

// Puts our record there, or finds it there. The record of a dead run goes; one of a live run is
// left alone.
Result<void> RankAtFile::hold() {
  const std::string own = format_record(record_);
  do {
    const auto there = file_.read();
    if (!there) return there.error();
    if (*there && **there == own) return boost::system::in_place_value;
    if (*there) {
      if (auto replaced = replace(**there); !replaced) return replaced;
      continue;
    }
    const auto created = file_.create(own);
    if (!created) return created.error();
    if (*created) return boost::system::in_place_value;
    wait_.tell([this] { return at_file("other processes write it all the time"); });
  } while (Clock::now() < end_);
  return file_.error(ErrorCode::kTimedOut, "other processes write it all the time");
}

// An empty file says nothing: many programs make one to have a name that no other has.
Result<void> RankAtFile::replace(const std::string& text) {
  if (!text.empty()) {
    const auto other = parse_record(text);
    if (!other)
      return file_.error(ErrorCode::kInvalidArgument,
                         "what is in it was not written by ranks that meet: name another file");
    const std::string address = address_from(*other, here_);
    const bool lives = ::kill(other->process, 0) == 0 || errno == EPERM;
    const StoreAnswer heard = probe_at(*other, address).heard;
    const Earlier earlier = judge_earlier(*other, here_, lives, heard);
    if (earlier == Earlier::kRuns)
      return file_.error(ErrorCode::kRejected,
                         fmt::format("two jobs use it at once, or two ranks 0: {} meets {} ranks "
                                     "there",
                                     rank0_of(*other), other->ranks));
    if (earlier == Earlier::kUnknown)
      return file_.error(ErrorCode::kRejected,
                         fmt::format("{} has left it and does not answer at {} port {}: if that "
                                     "job is over, remove the file",
                                     rank0_of(*other), address, other->port));
  }
  const auto removed = file_.remove(text);
  if (!removed) return removed.error();
  return boost::system::in_place_value;
}

Result<void> RankAtFile::meet_as_rank0(store::Client client) {
  CheckIn check_in(std::move(client), file_, record_, world_.rank);
  if (const auto arrived = check_in.arrive(here_); !arrived) return arrived.error();
  for (;;) {
    const auto all_here = check_in.all_here_by(std::min(end_, Clock::now() + kHoldTime));
    if (!all_here) return all_here.error();
    if (*all_here) return place(check_in);
    wait_.tell([&] { return at_file(check_in.absent_text()); });
    if (Clock::now() >= end_) {
      if (auto ended = check_in.end_late(timeout_); !ended) return ended;
    } else if (auto held = hold(); !held) {
      // Only this rank says what is wrong with the file.
      const auto ended = check_in.end(ErrorCode::kUnavailable, "rank 0 has lost the file");
      if (!ended) return held;
    }
  }
}

Result<std::unique_ptr<OwnStore>> RankAtFile::lead() {
  if (auto may = file_.may_write(); !may) return may.error();
  auto store = OwnStore::serve(world_);
  if (!store) return store.error();
  if (auto described = describe(); !described) return described.error();
  auto client = store::Client::connect("127.0.0.1", world_.master_port, kRequestTime);
  if (!client) return client.error();
  if (auto told = client->set(init_key(record_, "served"), "1"); !told) return told.error();
  if (auto done = client->ping(); !done) return done.error();
  if (auto held = hold(); !held) return held.error();
  const auto met = meet_as_rank0(std::move(*client));
  // It has served its purpose, or never will. An error here is no reason to end a job whose ranks
  // have met.
  [[maybe_unused]] const auto removed = file_.remove(format_record(record_));
  if (!met) return met.error();
  return store;
}

Result<std::unique_ptr<OwnStore>> RankAtFile::follow() {
  if (auto may = file_.may_write(); !may) return may.error();
  for (milliseconds look = kFirstLook; Clock::now() < end_;
       look = std::min(look * 3 / 2, kLastLook)) {
    const auto there = file_.read();
    if (!there) return there.error();
    if (*there && !(*there)->empty()) {
      const auto joined = join_by(**there);
      if (!joined) return joined.error();
      if (*joined) return std::make_unique<OwnStore>();
    }
    wait_.tell([this] { return at_file("rank 0 has not come yet" + trace()); });
    file_.wait(std::min(end_, Clock::now() + look));
  }
  return rank0_absent();
}

// Joins by the text of the file; see join().
Result<bool> RankAtFile::join_by(const std::string& text) {
  const auto record = parse_record(text);
  if (!record)
    return file_.error(ErrorCode::kInvalidArgument,
                       "what is in it was not written by ranks that meet: name another file");
  return join(*record);
}

// False if what the file says is of another run, which is over, or which has met without this rank.
Result<bool> RankAtFile::join(const InitRecord& record) {
  record_ = record;
  auto probe = probe_at(record, address_from(record, here_));
  if (!probe.client) return false;
  if (are_two_jobs(record.job, job()))
    return file_.error(
        ErrorCode::kRejected,
        fmt::format("two jobs use it at once: {} is of job {}, this rank {} of job {}",
                    rank0_of(record), record.job, world_.rank, job()));
  CheckIn check_in(std::move(*probe.client), file_, record, world_.rank);
  if (record.ranks != world_.world_size) {
    const auto ended =
        check_in.end(ErrorCode::kInvalidArgument,
                     fmt::format("rank {} has a world size of {}, rank 0 ({}) of {}", world_.rank,
                                 world_.world_size, rank0_of(record), record.ranks));
    if (!ended) return ended.error();
    return false;
  }
  auto arrived = check_in.arrive(here_);
  if (!arrived || !*arrived) return arrived;
  auto all_here = check_in.all_here_by(wait_.until(end_));
  while (all_here && !*all_here && Clock::now() < end_) {
    wait_.tell([&] { return at_file(check_in.absent_text()); });
    all_here = check_in.all_here_by(wait_.until(end_));
  }
  if (!all_here) return all_here.error();
  if (!*all_here) {
    if (auto ended = check_in.end_late(timeout_); !ended) return ended.error();
  }
  if (auto placed = place(check_in); !placed) return placed.error();
  return true;
}

Result<void> RankAtFile::place(CheckIn& check_in) {
  const auto hosts = check_in.hosts();
  if (!hosts) return hosts.error();
  const auto places = place_ranks(*hosts);
  const RankPlace& own = places[static_cast<std::size_t>(world_.rank)];
  world_.local_rank = own.local_rank;
  world_.local_world_size = own.local_ranks;
  world_.node_rank = own.node_rank;
  world_.node_count = 1 + std::ranges::max_element(places, {}, &RankPlace::node_rank)->node_rank;
  // On several hosts rank 0, too, goes by the address that others know. By that it tells them where
  // it is.
  world_.master_addr = world_.node_count == 1 ? "127.0.0.1" : record_.address;
  world_.master_port = record_.port;
  world_.use_agent_store = true;
  if (world_.run_id == "none") world_.run_id = "file-" + record_.id;
  return boost::system::in_place_value;
}

// Returns the text about another rank 0 that has left its record there.
std::string RankAtFile::trace() const {
  if (record_.id.empty()) return {};
  return fmt::format("; {} has left the file and does not answer at {} port {}", rank0_of(record_),
                     address_from(record_, here_), record_.port);
}

Error RankAtFile::rank0_absent() const {
  return file_.error(ErrorCode::kTimedOut, fmt::format("rank {} waited {} s: rank 0 did not come{}",
                                                       world_.rank, in_seconds(timeout_), trace()));
}

// For a line of a wait.
std::string RankAtFile::at_file(std::string_view what) const {
  return file_
      .error(ErrorCode::kTimedOut, fmt::format("rank {} is there, and {}", world_.rank, what))
      .message();
}

}  // namespace

Result<std::unique_ptr<OwnStore>> meet_at_file(WorkerEnv& world, const FileInitMethod& by_file) {
  RankAtFile rank(world, by_file);
  return world.rank == 0 ? rank.lead() : rank.follow();
}

}  // namespace ddprun::worker
