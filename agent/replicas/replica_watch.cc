#include "agent/replicas/replica_watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/regular_file.h"

namespace ddprun::agent {
namespace {

constexpr const char* kReason = "why";
// A worker writes few reasons. It may write what it likes.
constexpr std::size_t kMostReasonBytes = std::size_t{64} * 1024;
constexpr std::size_t kMostReasons = 16;

}  // namespace

ReplicaWatch::ReplicaWatch(asio::io_context& loop, Handlers handlers)
    : handlers_(std::move(handlers)), alarm_(loop, [this] { look(); }) {}

std::string ReplicaWatch::path_of(int local_rank, const std::string& what) const {
  return fmt::format("{}/replicas_{}_{}", handlers_.folder(), local_rank, what);
}

void ReplicaWatch::attempt_begins(const Attempt& attempt) {
  if (handlers_.folder().empty()) return;
  attempt_ = attempt;
  told_.assign(static_cast<std::size_t>(attempt.workers),
               std::vector<std::int64_t>(kMostOptimizers));
  alarm_.set(now() + kEvery);
}

void ReplicaWatch::attempt_ends() {
  if (!attempt_) return;
  look_for_reasons();
  for (int rank = 0; rank < attempt_->workers; ++rank) {
    for (int one = 0; one < kMostOptimizers; ++one)
      ::unlink(path_of(rank, std::to_string(one)).c_str());
    ::unlink(path_of(rank, kReason).c_str());
  }
  attempt_.reset();
  alarm_.set(Time::max());
}

void ReplicaWatch::look() {
  alarm_.set(now() + kEvery);
  std::vector<RankCheck> checks;
  for (int rank = 0; rank < attempt_->workers; ++rank) {
    for (int one = 0; one < kMostOptimizers; ++one) {
      const auto found = read_replica_checks(path_of(rank, std::to_string(one)));
      if (!found) continue;  // an optimizer that is not compared has none
      std::int64_t& told = told_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(one)];
      for (const ReplicaCheck& check : found->checks)
        if (check.step > told)
          checks.push_back({attempt_->first_rank + rank, found->set, found->members, check});
      told = std::max(told, found->checks.back().step);
    }
  }
  for (const rendezvous::ReplicaReport& report : replica_reports(attempt_->round, checks))
    handlers_.session()->report_replicas(report);
  look_for_reasons();
}

void ReplicaWatch::look_for_reasons() {
  for (int rank = 0; rank < attempt_->workers; ++rank) {
    std::istringstream lines(read_file_start(path_of(rank, kReason), kMostReasonBytes));
    for (std::string why; reasons_.size() < kMostReasons && std::getline(lines, why);)
      if (reasons_.insert(why).second) handlers_.not_compared(attempt_->first_rank + rank, why);
  }
}

void ReplicaWatch::hear(const rendezvous::HostMessage& message) {
  if (!attempt_) return;
  const auto* question = std::get_if<rendezvous::ReplicaQuestion>(&message);
  if (question != nullptr && question->round == attempt_->round) answer(*question);
  const auto* verdict = std::get_if<rendezvous::ReplicaVerdict>(&message);
  if (verdict != nullptr && verdict->round == attempt_->round) handlers_.differ(*verdict);
}

void ReplicaWatch::answer(const rendezvous::ReplicaQuestion& question) {
  std::vector<RankHashes> ranks;
  for (int rank = 0; rank < attempt_->workers; ++rank) {
    for (int one = 0; one < kMostOptimizers; ++one) {
      const std::string path = path_of(rank, std::to_string(one));
      const auto checks = read_replica_checks(path);
      if (!checks || checks->set != question.set) continue;
      auto hashes = read_replica_hashes(path, question.step);
      ranks.push_back({attempt_->first_rank + rank, std::move(hashes).value_or(ReplicaHashes{})});
    }
  }
  for (const rendezvous::ReplicaReport& report : replica_answers(question, ranks))
    handlers_.session()->report_replicas(report);
}

void ReplicaWatch::keep_details(const std::string& folder,
                                const rendezvous::ReplicaVerdict& verdict) const {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  std::ofstream(folder + "/verdict.txt") << verdict.sentence << '\n';
  for (int rank = 0; attempt_ && rank < attempt_->workers; ++rank) {
    std::ofstream file(fmt::format("{}/rank_{}.txt", folder, attempt_->first_rank + rank));
    for (int one = 0; one < kMostOptimizers; ++one) {
      const auto found = read_replica_hashes(path_of(rank, std::to_string(one)), verdict.step);
      if (!found) continue;
      file << fmt::format("# optimizer {}, step {}: hash and tensor\n", one, verdict.step);
      for (std::size_t at = 0; at < found->hashes.size(); ++at)
        file << fmt::format("{:016x}\t{}\n", found->hashes[at], found->names[at]);
    }
  }
}

}  // namespace ddprun::agent
