#include "agent/standstill/standstills.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "agent/standstill/process_look.h"
#include "agent/standstill/witness_folder.h"

namespace ddprun::agent {
namespace {

// The look itself, and the wait for the verdict, may cost a worker so much.
constexpr std::chrono::milliseconds kStillCpu{500};

void copy(const std::string& from, const std::string& to) {
  std::error_code ignored;
  std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing, ignored);
}

}  // namespace

Standstills::Standstills(asio::io_context& loop, Children& children, Workers workers,
                         Handlers handlers)
    : children_(children),
      workers_(std::move(workers)),
      handlers_(std::move(handlers)),
      watch_alarm_(loop, [this] { watch(); }),
      look_alarm_(loop, [this] { go_on(); }),
      hung_worker_(loop, children) {}

void Standstills::attempt_begins(const Attempt& attempt) {
  if (workers_.pages() == nullptr) return;
  attempt_ = attempt;
  looks_.clear();
  looks_.resize(static_cast<std::size_t>(attempt.workers));
  watch_.attempt_begins(looks_.size(), now());
  watch_alarm_.set(now() + StandstillWatch::kEvery);
}

void Standstills::attempt_ends() {
  looks_.clear();
  stage_ = Stage::kNone;
  watch_alarm_.set(Time::max());
  look_alarm_.set(Time::max());
  hung_worker_.forget();
}

// ---- the watch ----

bool Standstills::may_ask(int local_rank) const {
  return has_witness(workers_.pages(), children_, local_rank);
}

// A worker without a witness, whose Python py-spy may know.
bool Standstills::may_spy(int local_rank) const {
  const pid_t pid = children_.pid_of(local_rank);
  return pid != 0 && !may_ask(local_rank) && !find_py_spy(pid).empty();
}

WorkerSight Standstills::sight_of(int local_rank) const {
  const WorkerPage& page = workers_.pages()->page(local_rank);
  const pid_t pid = children_.pid_of(local_rank);
  WorkerSight sight{.lives = pid != 0,
                    .has_witness = may_ask(local_rank),
                    .steps = page.steps,
                    .last_step = time_of_page(page.last_step)};
  if (!sight.has_witness && sight.steps == 0) sight.has_witness = may_spy(local_rank);
  if (sight.has_witness && sight.steps == 0) sight.cpu = cpu_of(pid);
  return sight;
}

void Standstills::watch() {
  std::vector<WorkerSight> sights;
  sights.reserve(looks_.size());
  for (int rank = 0; rank < std::ssize(looks_); ++rank) sights.push_back(sight_of(rank));
  const bool suspects = watch_.looked(sights, now());
  watch_alarm_.set(now() + StandstillWatch::kEvery);
  if (const auto length = watch_.went_on_after()) handlers_.went_on(*length);
  if (suspects && stage_ == Stage::kNone) suspect();
}

void Standstills::suspect() { handlers_.session()->suspect(attempt_.round); }

// ---- what the rendezvous says ----

// Without an attempt there is nothing to say of its workers.
void Standstills::hear(const rendezvous::HostMessage& message) {
  if (looks_.empty()) return;
  const auto* look = std::get_if<rendezvous::Look>(&message);
  if (look != nullptr && look->round == attempt_.round) begin_look(look->inquiry);
  const auto* told = std::get_if<rendezvous::StandstillVerdict>(&message);
  if (told != nullptr && told->round == attempt_.round) verdict_came(told->verdict);
}

// All look once more at once where an alarm is not certain, and where one is to be acted on.
void Standstills::verdict_came(const rendezvous::Verdict& verdict) {
  using Belief = StandstillWatch::Belief;
  const Belief belief = watch_.verdict_came(verdict, now());
  if (belief == Belief::kNone) return;
  if (belief == Belief::kNew) handlers_.alarm(verdict);
  const bool is_believed = belief != Belief::kLookAgain;
  if (is_believed && attempt_.acts && watch_.may_act(verdict, now())) return handlers_.act(verdict);
  const bool wants_another = belief == Belief::kNew && attempt_.acts && verdict.may_be_acted_on();
  if (is_believed && !wants_another) return;
  watch_.suspects_again(now());
  suspect();
}

// Some seconds have passed since the look. A rank that has moved meanwhile is not ended.
void Standstills::end_worker(const rendezvous::Verdict& verdict) {
  const int local_rank = verdict.rank_to_end - attempt_.first_rank;
  if (local_rank < 0 || local_rank >= std::ssize(looks_)) return;
  const RankLook& seen = looks_[static_cast<std::size_t>(local_rank)].second;
  const pid_t pid = children_.pid_of(local_rank);
  if (pid == 0 || workers_.pages()->page(local_rank).steps != seen.steps) return;
  if (cpu_of(pid) > seen.process.cpu + kStillCpu) return;
  hung_worker_.end(local_rank, std::string(kEndedForHang) + verdict.sentence);
}

// ---- a look ----

void Standstills::begin_look(std::int64_t inquiry) {
  inquiry_ = inquiry;
  if (stage_ != Stage::kNone) return;
  for (WorkerLooks& worker : looks_) worker = {.question = worker.question};
  ask_witnesses();
  stage_ = Stage::kFirstAnswers;
  look_alarm_.set(now() + kWitnessLimit);
}

void Standstills::go_on() {
  switch (stage_) {
    case Stage::kNone:
      return;
    case Stage::kFirstAnswers:
      read_answers(&WorkerLooks::first);
      look_at_workers(&WorkerLooks::first);
      first_look_ = now();
      stage_ = Stage::kSecondLook;
      return look_alarm_.set(now() + kBetweenLooks);
    case Stage::kSecondLook:
      // A busy host may have kept a witness from its answer until now.
      read_answers(&WorkerLooks::first);
      look_at_workers(&WorkerLooks::second);
      second_look_ = now();
      ask_witnesses();
      stage_ = Stage::kSecondAnswers;
      answers_end_ = now() + kLastAnswers;
      return look_alarm_.set(now() + kWitnessLimit);
    case Stage::kSecondAnswers:
      read_answers(&WorkerLooks::second);
      if (now() < answers_end_ && lacks_answers()) return look_alarm_.set(now() + kWitnessLimit);
      stage_ = Stage::kNone;
      return give_evidence();
  }
}

void Standstills::ask_witnesses() {
  for (int rank = 0; rank < std::ssize(looks_); ++rank) {
    WorkerLooks& worker = looks_[static_cast<std::size_t>(rank)];
    // One that has not answered before may not answer again.
    const bool is_second = stage_ == Stage::kSecondLook;
    if (!may_ask(rank) || (is_second && !worker.first.answer)) ask_py_spy(rank);
    if (may_ask(rank)) worker.question = workers_.pages()->ask_witness(rank);
  }
}

std::string Standstills::spy_file(int local_rank) const {
  return fmt::format("{}/spy_{}", workers_.folder(), local_rank);
}

void Standstills::ask_py_spy(int local_rank) {
  const pid_t pid = children_.pid_of(local_rank);
  const std::string program = pid == 0 ? "" : find_py_spy(pid);
  auto& spy = looks_[static_cast<std::size_t>(local_rank)].spy;
  spy.reset();  // before the next one writes the file
  if (!program.empty()) spy = std::make_unique<PySpy>(program, pid, spy_file(local_rank));
}

void Standstills::look_at_workers(RankLook WorkerLooks::*look) {
  const SocketBytes sockets = socket_bytes();
  for (int rank = 0; rank < std::ssize(looks_); ++rank) {
    RankLook& seen = looks_[static_cast<std::size_t>(rank)].*look;
    const pid_t pid = children_.pid_of(rank);
    seen.has_ended_well = workers_.has_ended_well(rank);
    seen.has_witness = may_ask(rank);
    const WorkerPage& page = workers_.pages()->page(rank);
    seen.steps = page.steps;
    seen.calls_begun = page.calls_begun;
    seen.calls_done = page.calls_done;
    if (pid != 0) seen.process = look_at_process(pid, sockets);
  }
}

void Standstills::read_answers(RankLook WorkerLooks::*look) {
  for (int rank = 0; rank < std::ssize(looks_); ++rank) {
    WorkerLooks& worker = looks_[static_cast<std::size_t>(rank)];
    auto& answer = (worker.*look).answer;
    if (!answer && worker.question != 0)
      answer = read_witness_answer(workers_.folder(), *workers_.pages(), rank, worker.question);
    auto& spied = (worker.*look).spied;
    if (!spied && worker.spy) spied = worker.spy->answer();
  }
}

// One that has not answered for so long will not.
bool Standstills::lacks_answers() const {
  return std::ranges::any_of(looks_, [](const WorkerLooks& worker) {
    return (worker.first.answer && !worker.second.answer) ||
           (worker.spy && !worker.spy->has_ended());
  });
}

void Standstills::give_evidence() {
  std::vector<rendezvous::RankEvidence> evidence;
  for (int rank = 0; rank < std::ssize(looks_); ++rank) {
    const WorkerLooks& worker = looks_[static_cast<std::size_t>(rank)];
    evidence.push_back(evidence_of(worker.first, worker.second, second_look_ - first_look_));
    evidence.back().rank = attempt_.first_rank + rank;
    evidence.back().hostname = attempt_.hostname;
  }
  handlers_.session()->give_evidence(attempt_.round, inquiry_, evidence);
}

// ---- details ----

void Standstills::keep_details(const std::string& folder, const std::string& sentence) const {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) return;
  for (int rank = 0; rank < std::ssize(looks_); ++rank) {
    const WorkerLooks& worker = looks_[static_cast<std::size_t>(rank)];
    const std::uint64_t question = worker.question;
    const int global = attempt_.first_rank + rank;
    if (worker.second.spied)
      copy(spy_file(rank), fmt::format("{}/rank_{}_py_spy.txt", folder, global));
    if (question == 0) continue;
    copy(witness_answer_path(workers_.folder(), *workers_.pages(), rank, question),
         fmt::format("{}/rank_{}.txt", folder, global));
    copy(fmt::format("{}/witness_{}.trace", workers_.folder(), rank),
         fmt::format("{}/trace_{}", folder, global));
  }
  std::ofstream verdict(folder + "/verdict.txt");
  verdict << sentence << "\n";
}

}  // namespace ddprun::agent
