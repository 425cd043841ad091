#include "agent/standby/standbys.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "agent/core/worker_variables.h"
#include "agent/processes/descendants.h"
#include "agent/processes/scratch_folder.h"
#include "agent/standby/hook_text.h"
#include "agent/standby/python_program.h"
#include "agent/standby/shown_environment.h"
#include "agent/standby/standby_socket.h"
#include "base/limit_hint.h"
#include "base/log.h"
#include "base/memory_cgroup.h"
#include "base/numbers.h"
#include "proto/standby.h"

namespace ddprun::agent {
namespace {

// For all standbys of an attempt together, and more for each. One that has not gone by then is
// stopped, or hangs.
constexpr std::chrono::milliseconds kReleaseLimit{1000};
constexpr std::chrono::milliseconds kReleaseOfOne{100};
// The longest thing that a standby says: why it refuses.
constexpr std::size_t kAnswerBytes = 256;
// The memory of a standby. One that has imported PyTorch and its DDP has 346 MiB private.
constexpr std::uint64_t kStandbyBytes = std::uint64_t{400} << 20;

// Below the scratch folder. A folder of its own: what is on PYTHONPATH is searched for every
// import.
constexpr const char* kHookFolder = "/hook";
constexpr std::array<std::pair<const char*, std::string_view>, 9> kHookFiles{
    {{"/hook/sitecustomize.py", kHookText},
     {"/hook/witness.py", kWitnessText},
     {"/hook/steps.py", kStepsText},
     {"/hook/notice.py", kNoticeText},
     {"/hook/replicas.py", kReplicasText},
     {"/hook/imports.py", kImportsText},
     {"/hook/script.py", kScriptText},
     {"/hook/fork_server.py", kForkServerText},
     {"/hook/standby.py", kStandbyText}}};

// How long workers wait for standbys that are forked. Each takes some 10 ms; a host may be busy.
constexpr std::chrono::seconds kLongestForks{5};
// And the end of an attempt, for those that are on their way.
constexpr std::chrono::milliseconds kRestOfForks{100};

// DDPRUN_HOOK of a standby and of a fork server, by the descriptor of their connection. A worker
// has none.
std::string standby_value() { return fmt::format("{}:{}", ::getpid(), kControlFd); }
std::string fork_server_value() { return fmt::format("{}:{}:fork", ::getpid(), kControlFd); }
std::string worker_value() { return fmt::format("{}:", ::getpid()); }

// Leads Python to the hook, and tells the hook its task.
void add_hook(std::vector<std::string>& env, const std::string& folder, const std::string& value) {
  const std::string name = "PYTHONPATH";
  const auto found = find_variable(env, name);
  const bool given = found != env.end();
  const std::string path = given ? found->substr(name.size() + 1) : "";
  // A variable that ddprun has inherited is left out: the hook would make it the worker's
  // PYTHONPATH.
  std::erase_if(env,
                [](const std::string& entry) { return entry.starts_with("DDPRUN_PYTHONPATH="); });
  if (given) set_variable(env, "DDPRUN_PYTHONPATH", path);
  set_variable(env, name, path.empty() ? folder : folder + ":" + path);
  set_variable(env, kHookVariable, value);
}

// Returns the changes to the variables `before`. Each is NAME=VALUE, or NAME for one that is gone,
// with a zero byte at its end.
std::string changes(const std::vector<std::string>& before, const std::vector<std::string>& after) {
  const std::set<std::string_view> old(before.begin(), before.end());
  std::set<std::string_view> names;
  std::string block;
  for (const std::string_view entry : after) {
    names.insert(entry.substr(0, entry.find('=')));
    if (!old.contains(entry)) block.append(entry).push_back('\0');
  }
  for (const std::string_view entry : before) {
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!names.contains(name)) block.append(name).push_back('\0');
  }
  return block;
}

FileHandle new_output() { return FileHandle(::memfd_create("ddprun-standby-output", MFD_CLOEXEC)); }

bool write_file(const std::string& path, std::string_view text) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  constexpr mode_t kMode = 0644;
  const FileHandle file(::open(path.c_str(), kFlags, kMode));
  return ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace

struct Standbys::Standby {
  Standby(asio::io_context& loop, int rank, const Cold& program)
      : local_rank(rank), started_as(program), socket(loop) {}
  const int local_rank;
  const Cold started_as;
  pid_t pid = 0;  // 0: a fork server makes it just now
  Socket socket;
  std::array<char, kAnswerBytes> said{};
};

Standbys::Standbys(asio::io_context& loop, const AgentConfig& config, Children& children,
                   std::function<int()> cgroup, DyingHandler dying)
    : loop_(loop),
      config_(config),
      children_(children),
      cgroup_(std::move(cgroup)),
      plan_(config.standby != StandbyMode::kOff, config.worker_count),
      fork_server_(loop, children, [this] { fork_server_changed(); }),
      forks_end_(loop, [this] { fork_late(); }),
      cold_(static_cast<std::size_t>(config.worker_count)),
      standbys_(cold_.size()),
      look_(loop, [this] { look(); }),
      deaths_(loop, std::move(dying)) {}

void Standbys::open() {
  if (const auto made = make_files(); !made) {
    // Without a free descriptor the next step ends the job, and names the limit.
    if (made.error().code() != ErrorCode::kLimit)
      log::warning(fmt::format("{}; workers start without standbys", made.error().message()));
    return remove_files();
  }
  start_fork_server();
}

Result<void> Standbys::make_files() {
  auto folder = make_scratch_folder(config_.job_cookie);
  if (!folder) return folder.error();
  scratch_ = std::move(*folder);
  auto pages = WorkerPages::make(scratch_ + "/pages", config_.worker_count);
  if (!pages) return pages.error();
  takes_hook_ = config_.python_hook && takes_hook(config_.command(0));
  const std::string path = scratch_ + kHookFolder;
  if (takes_hook_ && (::mkdir(path.c_str(), S_IRWXU) != 0 ||
                      !std::ranges::all_of(kHookFiles, [&](const auto& file) {
                        return write_file(scratch_ + file.first, file.second);
                      })))
    return Error(ErrorCode::kSystem, "write the Python hook into " + path);
  if (config_.on_hang == OnHang::kOff) pages->forbid_witnesses();
  pages_.emplace(std::move(*pages));
  return {};
}

void Standbys::start_fork_server() {
  if (!takes_hook_ || !is_worth_sharing(config_, config_.command(0))) return;
  SpawnSpec program = fork_server_program(config_);
  shared_ = {program.file, program.argv, program.env, true};
  add_hook(program.env, scratch_ + kHookFolder, fork_server_value());
  hide_variables(program.env);
  program.out = new_output();
  program.err = new_output();
  if (const auto started = fork_server_.start(std::move(program)); !started)
    log::info(fmt::format("imports are not shared: {}", started.error().message()));
}

void Standbys::prepare(std::function<void()> start) {
  start_ = std::move(start);
  is_asked_ = is_late_ = false;
  // The reporter looks at them from now on.
  for (int rank = 0; pages_ && rank < config_.worker_count; ++rank) pages_->begin(rank, true);
  if (fork_server_.is_learning()) forks_end_.set(now() + kLongestForks);
  go_on();
}

void Standbys::forget_start() {
  start_ = nullptr;
  forks_end_.set(Time::max());
}

void Standbys::fork_server_changed() {
  if (start_) return go_on();
  if (warms()) warm_next();
}

// Workers wait for imports and forks that go on, and for nothing else.
void Standbys::go_on() {
  if (!start_ || fork_server_.is_importing()) return;
  if (fork_server_.is_learning() && !is_late_) return;
  if (!std::exchange(is_asked_, true)) {
    if (fork_server_.is_ready()) fork_missing();
    forks_end_.set(now() + kLongestForks);
  }
  if (is_forking()) return;
  forks_end_.set(Time::max());
  std::exchange(start_, nullptr)();
}

bool Standbys::is_forking() const {
  return std::ranges::any_of(
      standbys_, [](const auto& standby) { return standby != nullptr && standby->pid == 0; });
}

// Nobody would know them as standbys at the end of their attempt, which may come before they speak.
void Standbys::end_forks() {
  const Time until = now() + kRestOfForks;
  for (const auto& standby : std::vector(standbys_)) {
    if (!standby || standby->pid != 0) continue;
    boost::system::error_code ignored;
    standby->socket.cancel(ignored);
    heard(standby, await_answer(standby->socket.native_handle(), kAnswerBytes, until));
  }
}

void Standbys::fork_late() {
  is_late_ = true;
  if (fork_server_.is_learning()) return go_on();
  for (const auto& standby : std::vector(standbys_)) {
    if (standby && standby->pid == 0) drop(standby->local_rank, "its fork takes too long", false);
  }
  fork_server_.end("it hangs");
  go_on();
}

void Standbys::fork_missing() {
  std::vector<ForkServer::Order> orders;
  std::vector<FileHandle> ends;
  for (const int rank : plan_.missing()) {
    Cold begins_as = shared_;
    const Cold& predecessor = cold_[static_cast<std::size_t>(rank)];
    if (!predecessor.env.empty()) begins_as.env = predecessor.env;
    const auto standby = std::make_shared<Standby>(loop_, rank, begins_as);
    auto end = connect_standby(standby->socket);
    if (!end) return tell_why(rank, end.error().message());
    const std::string variables = changes(shared_.env, begins_as.env);
    const int socket = standby->socket.native_handle();
    send_head(socket, variables.size(), {});  // if it fails, the standby hears of our end
    send_all(socket, variables, now() + kReleaseLimit);
    orders.push_back({end->get(), pages_->variable(rank)});
    ends.push_back(std::move(*end));
    standbys_[static_cast<std::size_t>(rank)] = standby;
    plan_.warming(rank, now());
    hear(standby);
  }
  look_.set(plan_.look_again_at());
  if (!orders.empty()) fork_server_.make(orders, cgroup_());
}

// All workers have imported what they need, or had the time for it.
void Standbys::learn() {
  if (!fork_server_.can_learn() || std::exchange(has_learned_, true)) return;
  std::vector<std::string> pages;
  pages.reserve(standbys_.size());
  for (int rank = 0; rank < config_.worker_count; ++rank) pages.push_back(pages_->variable(rank));
  if (may_restart_ && fork_server_.is_ready())
    fork_server_.learn(pages);
  else
    fork_server_.remember(pages);
}

void Standbys::expect_no_restart() {
  may_restart_ = false;
  learn();
  end();
}

std::optional<pid_t> Standbys::begin_worker(SpawnSpec& worker) {
  if (!pages_) return std::nullopt;
  const auto rank = static_cast<std::size_t>(worker.local_rank);
  set_variable(worker.env, kWorkerPageVariable, pages_->variable(worker.local_rank));
  if (rank == 0) release_until_ = now() + kReleaseLimit + kReleaseOfOne * config_.worker_count;
  const auto standby = std::move(standbys_[rank]);
  const bool waits = standby && plan_.is_waiting(worker.local_rank);
  plan_.released(worker.local_rank);  // before let_go(), which may know better
  if (waits && let_go(*standby, worker)) {
    cold_[rank] = {worker.file, worker.argv, worker.env, standby->started_as.is_python};
    children_.adopt(standby->pid, worker.local_rank);
    return standby->pid;
  }
  if (standby) children_.end_standby(standby->pid);
  // One that was forked leaves notes of what it has imported beside the shared ones.
  pages_->begin(worker.local_rank, false);
  const bool is_python = takes_hook_ && hook_is_there();
  cold_[rank] = {worker.file, worker.argv, worker.env, is_python};
  if (is_python) add_hook(worker.env, scratch_ + kHookFolder, worker_value());
  return std::nullopt;
}

// Its own command must be the worker's: the flags of a job do not change, but its program may.
bool Standbys::let_go(Standby& standby, const SpawnSpec& worker) {
  const Cold& cold = standby.started_as;
  if (cold.file != worker.file || cold.argv != worker.argv) return false;
  boost::system::error_code ignored;
  standby.socket.cancel(ignored);
  pages_->begin(worker.local_rank, true);
  show_environment(standby.pid, worker.env);
  const int socket = standby.socket.native_handle();
  const std::string variables = changes(cold.env, worker.env);
  const std::array<int, 2> output{worker.out.get() < 0 ? STDOUT_FILENO : worker.out.get(),
                                  worker.err.get() < 0 ? STDERR_FILENO : worker.err.get()};
  std::string said;
  if (send_release_head(socket, {variables.size(), output}) &&
      send_all(socket, variables, release_until_))
    said = await_answer(socket, kAnswerBytes, release_until_);
  if (said == "g") return true;
  const bool refused = said.starts_with('!');
  tell_why(worker.local_rank, refused ? said.substr(1) : "it hangs");
  if (refused) plan_.unfit(worker.local_rank);  // another one would refuse too
  return false;
}

std::vector<WorkerProgress> Standbys::progress() const {
  std::vector<WorkerProgress> workers;
  for (int rank = 0; pages_ && rank < config_.worker_count; ++rank) {
    const WorkerPage& page = pages_->page(rank);
    workers.push_back({time_of_page(page.first_line), time_of_page(page.first_step), page.steps,
                       time_of_page(page.last_step)});
  }
  return workers;
}

void Standbys::attempt_started(bool may_restart) {
  may_restart_ = may_restart;
  if (!pages_ || !(warms() || fork_server_.can_learn())) return;
  plan_.attempt_started(now());
  look_.set(plan_.look_again_at());
}

void Standbys::attempt_ended() {
  plan_.attempt_ended();
  end_forks();
  plan_.attempt_ended();  // those that were on their way can be made again
  look_.set(plan_.look_again_at());
  deaths_.stop();
}

void Standbys::look() {
  std::vector<std::uint64_t> steps;
  steps.reserve(static_cast<std::size_t>(config_.worker_count));
  std::uint64_t noted = 0;
  for (int rank = 0; rank < config_.worker_count; ++rank) {
    const WorkerPage& page = pages_->page(rank);
    steps.push_back(page.steps);
    noted += page.notes_size;
  }
  if (const auto late = plan_.looked(steps, noted, now()))
    drop(*late, "its imports take too long", true);
  look_.set(plan_.look_again_at());
  if (!plan_.is_settled()) return;
  learn();
  if (!warms()) return;
  watch_for_deaths();
  if (!fork_server_.is_learning()) warm_next();
}

// Only now: the workers hold their locks since their first step at the latest.
void Standbys::watch_for_deaths() {
  std::vector<std::atomic<std::uint32_t>*> locks;
  locks.reserve(static_cast<std::size_t>(config_.worker_count));
  for (int rank = 0; rank < config_.worker_count; ++rank)
    locks.push_back(pages_->page(rank).lock_word());
  deaths_.start(std::move(locks));
}

// Returns whether the worker has shown that this command line comes to the hook, or to bootstrap().
// It must do so in the very process that we start, and the hook must still be there. Else a standby
// would run the user's program.
bool Standbys::can_wait(int local_rank) const {
  const auto parked = static_cast<pid_t>(pages_->page(local_rank).parks.load());
  const bool needs_hook = cold_[static_cast<std::size_t>(local_rank)].is_python;
  return parked != 0 && parked == children_.pid_of(local_rank) && (!needs_hook || hook_is_there());
}

bool Standbys::hook_is_there() const {
  return std::ranges::all_of(kHookFiles, [this](const auto& file) {
    return ::access((scratch_ + file.first).c_str(), R_OK) == 0;
  });
}

void Standbys::warm_next() {
  const auto rank = plan_.next();
  if (!rank) return;
  if (fork_server_.is_ready()) return fork_missing();
  if (!can_wait(*rank)) return plan_.give_up();
  if (config_.standby == StandbyMode::kAuto && !has_room()) return plan_.give_up();
  const auto warmed = warm(*rank);
  if (warmed) {
    plan_.warming(*rank, now());
    return look_.set(plan_.look_again_at());
  }
  log::warning(fmt::format("no standby for local rank {}: {}", *rank, warmed.error().message()));
  plan_.give_up();
}

bool Standbys::has_room() {
  const auto left = memory_left();
  if (!left || *left >= 2 * kStandbyBytes) return true;
  log::warning(fmt::format(
      "no standby workers: {} MiB of memory are left, and a standby starts only with {} MiB "
      "(--standby=1 starts it anyway, --standby=0 says nothing)",
      *left >> 20, (2 * kStandbyBytes) >> 20));
  return false;
}

Result<void> Standbys::warm(int local_rank) {
  const Cold& cold = cold_[static_cast<std::size_t>(local_rank)];
  const auto standby = std::make_shared<Standby>(loop_, local_rank, cold);
  auto end = connect_standby(standby->socket);
  if (!end) return end.error();
  SpawnSpec spec{.local_rank = local_rank, .file = cold.file, .argv = cold.argv, .env = cold.env};
  spec.control = std::move(*end);
  // The output of imports is passed on when it becomes the worker.
  spec.out = new_output();
  spec.err = new_output();
  if (spec.out.get() < 0 || spec.err.get() < 0)
    return Error(ErrorCode::kSystem,
                 fmt::format("make a file for its output: {}", describe_errno(errno)));
  if (cold.is_python)
    add_hook(spec.env, scratch_ + kHookFolder, standby_value());
  else
    set_variable(spec.env, kHookVariable, standby_value());
  hide_variables(spec.env);
  const auto pid = children_.spawn_standby(spec, cgroup_());
  if (!pid) return pid.error();
  standby->pid = *pid;
  standbys_[static_cast<std::size_t>(local_rank)] = standby;
  hear(standby);
  return {};
}

// `said`: "w", or "w" and the pid of one that was forked.
bool Standbys::knows(Standby& standby, std::string_view said) {
  if (!said.starts_with('w')) return false;
  if (standby.pid != 0) return true;
  const auto pid = parse_whole<pid_t>(said.substr(1));
  if (!pid || !children_.take_standby(*pid)) return false;
  standby.pid = *pid;
  return true;
}

// Hears that it waits or refuses, and then of its end.
void Standbys::hear(const std::shared_ptr<Standby>& standby) {
  standby->socket.async_read_some(
      asio::buffer(standby->said),
      [this, standby](const boost::system::error_code& error, std::size_t read) {
        if (error == asio::error::operation_aborted) return;
        heard(standby, std::string_view(standby->said.data(), error ? 0 : read));
      });
}

// `said`: empty if it has ended.
void Standbys::heard(const std::shared_ptr<Standby>& standby, std::string_view said) {
  const int rank = standby->local_rank;
  // It was let go or dropped meanwhile.
  if (standbys_[static_cast<std::size_t>(rank)] != standby) return;
  const bool refuses = said.starts_with('!');
  if (!knows(*standby, said)) {
    drop(rank, refuses ? said.substr(1) : "it has ended", refuses);
  } else if (!descendants(standby->pid).empty()) {
    drop(rank, "an import has started a process", true);  // it would be there twice
  } else {
    plan_.waits(rank);
    hear(standby);
  }
  if (start_) return go_on();
  if (warms() && !fork_server_.is_learning()) warm_next();
}

void Standbys::tell_why(int local_rank, std::string_view why) {
  log::info(fmt::format("local rank {} has no standby: {}", local_rank, why));
}

// `for_good`: another one would end the same way.
void Standbys::drop(int local_rank, std::string_view why, bool for_good) {
  tell_why(local_rank, why);
  auto& standby = standbys_[static_cast<std::size_t>(local_rank)];
  children_.end_standby(standby->pid);
  standby.reset();
  for_good ? plan_.unfit(local_rank) : plan_.ended(local_rank);
}

void Standbys::end() {
  plan_.give_up();
  look_.set(Time::max());
  deaths_.stop();
  forget_start();
  fork_server_.end();
  for (auto& standby : standbys_) {
    if (standby) children_.end_standby(standby->pid);
    standby.reset();
  }
}

void Standbys::remove_files() {
  if (scratch_.empty()) return;
  scratch_.clear();
  remove_scratch_folder(config_.job_cookie);
}

}  // namespace ddprun::agent
