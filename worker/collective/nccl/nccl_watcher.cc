#include "worker/collective/nccl/nccl_watcher.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/duration.h"
#include "worker/collective/core/flight_record.h"
#include "worker/collective/nccl/quiet_thread.h"

namespace ddprun::worker {
namespace {

// Between two looks, while the program waits or launches. It is short at first, as most operations
// take microseconds. Then it is longer, so that a wait for a slow rank does not burn a core. Else
// nobody is in a hurry.
constexpr std::chrono::microseconds kFirstWatch{20};
constexpr std::chrono::microseconds kLongestWatch{1'000};
constexpr std::chrono::microseconds kIdleWatch{2'000};
// While graphs hold operations and nothing else is under way. A graph may run at any time, and the
// program then waits for its stream alone.
constexpr std::chrono::milliseconds kGraphWatch{100};

}  // namespace

class NcclWatcher::Question {
 public:
  explicit Question(NcclWatcher& of) : of_(of) {
    of_.asked_at_ = Clock::now().time_since_epoch().count();
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;
  Question(Question&&) = delete;
  Question& operator=(Question&&) = delete;
  ~Question() { of_.asked_at_ = 0; }

  bool passed(const Event& event) const { return event.passed(); }
  std::optional<std::string> trouble() const { return of_.communicator_->trouble(); }

 private:
  NcclWatcher& of_;
};

NcclWatcher::NcclWatcher(std::shared_ptr<Communicator> communicator, const Options& options)
    : communicator_(std::move(communicator)),
      options_(options),
      ring_(std::make_unique<OperationRing>()) {}

void NcclWatcher::start() {
  start_without_signals([self = shared_from_this()] { self->run(); }).detach();
}

void NcclWatcher::stop(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  woken_.notify_all();
  if (!moved_.wait_for(lock, limit, [this] { return stopped_; })) return;
  lock.unlock();
  if (looks_) looks_->leave(report_of(*ring_, options_.rank));
}

// With the lock, so that nobody is between their look and their sleep.
void NcclWatcher::wake() {
  const std::lock_guard lock(mutex_);
  woken_.notify_all();
  moved_.notify_all();
}

void NcclWatcher::compare_over(std::unique_ptr<DesyncBoard> board) {
  const std::lock_guard lock(mutex_);
  looks_.emplace(std::move(board), options_.rank, options_.ranks);
}

std::uint32_t NcclWatcher::begin(OperationKind kind, std::uint64_t bytes, Dtype dtype, int peer,
                                 std::uint64_t parts) {
  communicator_->check();
  const std::lock_guard lock(mutex_);
  const std::uint32_t operation = ring_->begin(kind, bytes, dtype, {}, parts);
  peers_[operation % peers_.size()] = peer;
  return operation;
}

void NcclWatcher::end(std::uint32_t operation) {
  const std::lock_guard lock(mutex_);
  ring_->end(operation);
}

std::shared_ptr<NcclWatcher::Work> NcclWatcher::watch(std::uint32_t operation, Part part) {
  return watch(operation, part, options_.timeout);
}

std::shared_ptr<NcclWatcher::Work> NcclWatcher::watch(std::uint32_t operation, Part part,
                                                      std::chrono::milliseconds limit) {
  auto work = std::make_shared<Work>();
  work->operation_ = operation;
  work->ends_operation_ = part == Part::kEnds;
  work->limit_ = limit;
  work->begun_ = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    works_.push_back(work);
    nudge();
  }
  return work;
}

void NcclWatcher::launched(Work& work, std::optional<Event> ready, Event done) {
  const std::lock_guard lock(mutex_);
  if (ready) work.ready_.emplace(std::move(*ready));
  work.done_.emplace(std::move(done));
}

// The program is in a hurry from now on.
void NcclWatcher::nudge() {
  nudged_ = true;
  pause_ = kFirstWatch;
  woken_.notify_all();
}

bool NcclWatcher::over(const Work& work) const {
  const std::lock_guard lock(mutex_);
  return work.over_;
}

void NcclWatcher::wait(const Work& work) {
  std::unique_lock lock(mutex_);
  ++waiters_;
  nudge();
  moved_.wait(lock, [&] { return work.over_ || communicator_->failed(); });
  --waiters_;
  if (work.over_) return;
  lock.unlock();
  communicator_->check();
}

bool NcclWatcher::wait_for_all(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return moved_.wait_for(lock, limit, [this] { return works_.empty() || communicator_->failed(); });
}

std::string NcclWatcher::flight_record() const {
  const std::lock_guard lock(mutex_);
  return worker::flight_record(*ring_, {.collective = "nccl",
                                        .rank = options_.rank,
                                        .ranks = options_.ranks,
                                        .timeout = options_.timeout});
}

std::chrono::milliseconds NcclWatcher::silence() const {
  const Clock::rep asked = asked_at_;
  if (asked == 0) return {};
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      Clock::now() - Clock::time_point(Clock::duration(asked)));
}

void NcclWatcher::run() {
  pthread_setname_np(pthread_self(), "nccl_watcher");
  cudaSetDevice(options_.gpu);  // for this thread; who made the collective has done it before
  const BesideCaptures beside;  // it asks events while the program may capture
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (rests()) {
      rest(lock);
      continue;
    }
    look(lock);
    const bool hurry = waiters_ > 0 || (!works_.empty() && !works_.front()->done_);
    woken_.wait_for(lock, hurry ? pause_ : kIdleWatch,
                    [this] { return stopping_ || std::exchange(nudged_, false); });
    pause_ = std::min(pause_ * 2, kLongestWatch);
  }
  stopped_ = true;
  moved_.notify_all();
}

bool NcclWatcher::rests() const {
  return !stopping_ && (works_.empty() || communicator_->failed());
}

// Returns when there is something to watch, or after one look for the sake of graphs.
void NcclWatcher::rest(std::unique_lock<std::mutex>& lock) {
  const auto is_for_graphs = [this] {
    return communicator_->is_in_graphs() && !communicator_->failed();
  };
  woken_.wait(lock, [&] { return !rests() || is_for_graphs(); });
  if (woken_.wait_for(lock, kGraphWatch, [this] { return !rests(); })) return;
  if (is_for_graphs()) look(lock);
}

// The first reason is kept: the program may have found another one meanwhile.
void NcclWatcher::look(std::unique_lock<std::mutex>& lock) {
  std::optional<std::string> why;
  try {
    if (take_what_is_done(lock)) return;
    why = find_failure(lock);
  } catch (const CollectiveError& error) {  // of CUDA: of one of the program's kernels, mostly
    if (!lock.owns_lock()) lock.lock();
    why = fmt::format("rank {}: {}", options_.rank, error.what());
  }
  if (!why) return;
  lock.unlock();
  communicator_->fail(*why);
  lock.lock();
}

// Returns whether any was. CUDA is not called with the lock, also not to destroy events: else the
// monitor could not get it.
bool NcclWatcher::take_what_is_done(std::unique_lock<std::mutex>& lock) {
  std::vector<std::shared_ptr<Work>> done;
  while (!works_.empty() && works_.front()->done_) {
    const auto work = works_.front();
    lock.unlock();
    const bool passed = Question(*this).passed(*work->done_);
    lock.lock();
    if (!passed) break;
    work->over_ = true;
    last_done_ = Clock::now();
    if (work->ends_operation_) ring_->end(work->operation_);
    done.push_back(std::move(works_.front()));
    works_.pop_front();
  }
  if (done.empty()) return false;
  moved_.notify_all();
  lock.unlock();
  {
    const Question destroys(*this);
    done.clear();
  }
  lock.lock();
  if (looks_ && looks_->says_it_waits()) {
    const RankReport goes_on = report_of(*ring_, options_.rank);
    lock.unlock();
    looks_->go_on(goes_on);
    lock.lock();
  }
  return true;
}

// A work's time counts from when the one before it was done: else it would pay for that one.
NcclWatcher::Clock::time_point NcclWatcher::since(const Work& work) const {
  return std::max(work.begun_, last_done_);
}

std::optional<std::string> NcclWatcher::find_failure(std::unique_lock<std::mutex>& lock) {
  const auto work = works_.empty() ? nullptr : works_.front();
  lock.unlock();
  const auto wrong = Question(*this).trouble();
  lock.lock();
  if (wrong) {
    const std::string what = work ? ring_->describe(work->operation_) : "a CUDA graph";
    return fmt::format("rank {}: {}: {}", options_.rank, what, *wrong);
  }
  if (!work) return std::nullopt;
  if (Clock::now() >= since(*work) + work->limit_) return past_deadline(lock, work);
  return disagreement(lock);
}

std::string NcclWatcher::past_deadline(std::unique_lock<std::mutex>& lock,
                                       const std::shared_ptr<Work>& work) {
  const std::string operation = ring_->describe(work->operation_);
  const RankReport mine = report();
  const bool is_launched = work->done_.has_value();  // then ready_ does not change any more
  lock.unlock();
  const bool own_fault = is_launched && work->ready_ && !Question(*this).passed(*work->ready_);
  const std::string absent = looks_ && !own_fault ? looks_->absent(mine) : "";
  lock.lock();
  const char* because = own_fault
                            ? "this rank's GPU has not come to it: what the program runs before it "
                              "takes longer, or hangs"
                        : absent.empty() ? "another rank has not come, or the transport hangs"
                                         : absent.c_str();
  return fmt::format("rank {}: {}: not complete after {} s: {} (NCCL_DEBUG=INFO says more)",
                     options_.rank, operation, in_seconds(work->limit_), because);
}

// Returns the report of a rank that waits.
RankReport NcclWatcher::report() const {
  RankReport mine = report_of(*ring_, options_.rank);
  const std::uint32_t operation = works_.front()->operation_;
  mine.state = RankReport::State::kWaits;
  mine.waits_in = ring_->find(operation).value_or(Operation{});
  mine.peer = peers_[operation % peers_.size()];
  return mine;
}

// While this rank's own GPU has not come to it, it does not wait.
std::optional<std::string> NcclWatcher::disagreement(std::unique_lock<std::mutex>& lock) {
  if (!looks_) return std::nullopt;
  const auto first = works_.front();
  if (!first->done_) return std::nullopt;  // it is not launched, and ready_ may still change
  if (!looks_->due(first->operation_, since(*first), Clock::now())) return std::nullopt;
  RankReport mine = report();
  lock.unlock();
  std::optional<std::string> found;
  if (!first->ready_ || Question(*this).passed(*first->ready_)) found = looks_->look(mine);
  lock.lock();
  return found;
}

}  // namespace ddprun::worker
