#include "agent/standby/standbys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "agent/processes/descendants.h"
#include "agent/processes/memory_cgroup.h"
#include "agent/processes/scratch_folder.h"
#include "agent/standby/hook_text.h"
#include "agent/standby/python_program.h"
#include "proto/log.h"

namespace ddprun::agent {
namespace {

// A standby that has not gone by then is stopped, or hangs.
constexpr std::chrono::milliseconds kReleaseLimit{200};
// What a standby takes for itself. One that has imported PyTorch and its DDP has 346 MiB private.
constexpr std::uint64_t kStandbyBytes = std::uint64_t{400} << 20;

constexpr std::string_view kHookVariable = "DDPRUN_HOOK";
constexpr std::string_view kSavedPathVariable = "DDPRUN_PYTHONPATH";
constexpr std::string_view kPathVariable = "PYTHONPATH";

std::optional<std::string> value_in(const std::vector<std::string>& env, std::string_view name) {
  for (const std::string& entry : env) {
    if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
  }
  return std::nullopt;
}

// What leads Python to the hook, and tells the hook what to do. `control`: the descriptor of a
// standby's connection; -1: a worker.
void add_hook(std::vector<std::string>& env, const std::string& folder, int control) {
  const auto path = value_in(env, kPathVariable);
  std::erase_if(env, [](const std::string& entry) {
    return entry.starts_with("PYTHONPATH=") || entry.starts_with("DDPRUN_PYTHONPATH=");
  });
  env.push_back(fmt::format("{}={}{}", kPathVariable, folder,
                            path && !path->empty() ? ":" + *path : std::string()));
  if (path) env.push_back(fmt::format("{}={}", kSavedPathVariable, *path));
  env.push_back(fmt::format("{}={}:{}", kHookVariable, ::getpid(),
                            control < 0 ? std::string() : std::to_string(control)));
}

// The first bytes of a release go with both descriptors.
bool send_descriptors(int socket, std::uint64_t size, std::array<int, 2> given) {
  std::array<char, CMSG_SPACE(sizeof(given))> control{};
  iovec bytes{&size, sizeof(size)};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(given));
  std::memcpy(CMSG_DATA(rights), given.data(), sizeof(given));
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(size));
}

bool send_all(int socket, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool await_word(int socket, char word) {
  pollfd ready{socket, POLLIN, 0};
  char said = 0;
  return ::poll(&ready, 1, static_cast<int>(kReleaseLimit.count())) > 0 &&
         ::read(socket, &said, 1) == 1 && said == word;
}

}  // namespace

struct Standbys::Standby {
  Standby(asio::io_context& loop, int rank) : local_rank(rank), socket(loop) {}
  const int local_rank;
  pid_t pid = 0;
  Socket socket;
  char word = 0;
};

Standbys::Standbys(asio::io_context& loop, const AgentConfig& config, Children& children,
                   std::function<int()> cgroup)
    : loop_(loop),
      config_(config),
      children_(children),
      cgroup_(std::move(cgroup)),
      plan_(config.standby != StandbyMode::kOff, config.worker_count),
      cold_(static_cast<std::size_t>(config.worker_count)),
      standbys_(cold_.size()),
      look_(loop, [this] { look(); }) {}

void Standbys::open() {
  if (const auto made = make_files(); !made) {
    log::warning(fmt::format("{}; workers start without standbys", made.error().message()));
    remove_files();
  }
}

Result<void> Standbys::make_files() {
  auto folder = make_scratch_folder(config_.job_cookie);
  if (!folder) return folder.error();
  scratch_ = std::move(*folder);
  auto pages = WorkerPages::make(scratch_ + "/pages", config_.worker_count);
  if (!pages) return pages.error();
  // A folder of its own: what is on PYTHONPATH is searched for every import.
  const std::string path = scratch_ + "/hook";
  const bool made = ::mkdir(path.c_str(), S_IRWXU) == 0;
  std::ofstream file(path + "/sitecustomize.py");
  file << kHookText;
  file.close();
  if (!made || !file) return Error(ErrorCode::kSystem, "write the Python hook into " + path);
  pages_.emplace(std::move(*pages));
  return {};
}

std::optional<pid_t> Standbys::begin_worker(SpawnSpec& worker) {
  if (!pages_) return std::nullopt;
  const auto rank = static_cast<std::size_t>(worker.local_rank);
  worker.env.push_back(
      fmt::format("{}={}", kWorkerPageVariable, pages_->variable(worker.local_rank)));
  const auto standby = std::move(standbys_[rank]);
  const bool waits = standby && plan_.is_waiting(worker.local_rank);
  pages_->begin(worker.local_rank, waits);
  plan_.released(worker.local_rank);
  if (waits && let_go(*standby, worker)) {
    cold_[rank].env = worker.env;
    children_.adopt(standby->pid, worker.local_rank);
    return standby->pid;
  }
  if (standby) children_.end_standby(standby->pid);
  pages_->begin(worker.local_rank, false);
  const WorkerProgram program{worker.file, worker.argv};
  cold_[rank] = {};
  if (!config_.python_hook || !takes_hook(program)) return std::nullopt;
  cold_[rank] = {worker.file, worker.argv, worker.env};
  add_hook(worker.env, scratch_ + "/hook", -1);
  return std::nullopt;
}

// Its own command must be the worker's: the flags of a job do not change, but its program may.
bool Standbys::let_go(Standby& standby, const SpawnSpec& worker) {
  const Cold& cold = cold_[static_cast<std::size_t>(worker.local_rank)];
  if (cold.file != worker.file || cold.argv != worker.argv) return false;
  standby.socket.cancel();
  const int socket = standby.socket.native_handle();
  const std::string variables = fmt::format("{}", fmt::join(worker.env, std::string_view("\0", 1)));
  const std::array<int, 2> output{worker.out.get() < 0 ? STDOUT_FILENO : worker.out.get(),
                                  worker.err.get() < 0 ? STDERR_FILENO : worker.err.get()};
  return send_descriptors(socket, variables.size(), output) && send_all(socket, variables) &&
         await_word(socket, 'g');
}

std::vector<WorkerProgress> Standbys::progress() const {
  std::vector<WorkerProgress> workers;
  // steady_clock is CLOCK_MONOTONIC, which the pages tell.
  const auto moment = [](std::uint64_t ns) { return Time(std::chrono::nanoseconds(ns)); };
  for (int rank = 0; pages_ && rank < config_.worker_count; ++rank) {
    const WorkerPage& page = pages_->page(rank);
    workers.push_back({moment(page.first_line), moment(page.first_step)});
  }
  return workers;
}

void Standbys::attempt_started(bool may_restart) {
  if (!may_restart || std::ranges::any_of(cold_, [](const Cold& one) { return one.file.empty(); }))
    return;
  plan_.attempt_started(now());
  look_.set(plan_.look_again_at());
}

void Standbys::attempt_ended() {
  plan_.attempt_ended();
  look_.set(plan_.look_again_at());
}

void Standbys::look() {
  std::vector<std::uint64_t> steps;
  for (int rank = 0; rank < config_.worker_count; ++rank) steps.push_back(pages_->page(rank).steps);
  plan_.looked(steps, now());
  look_.set(plan_.look_again_at());
  warm_next();
}

void Standbys::warm_next() {
  const auto rank = plan_.next();
  if (!rank) return;
  if (config_.standby == StandbyMode::kAuto && !has_room()) return plan_.give_up();
  const auto warmed = warm(*rank);
  if (warmed) return plan_.warming(*rank);
  log::warning(fmt::format("no standby for local rank {}: {}", *rank, warmed.error().message()));
  plan_.give_up();
}

bool Standbys::has_room() {
  const auto left = memory_left();
  if (!left || *left >= 2 * kStandbyBytes) return true;
  log::info(fmt::format(
      "no standby workers: {} MiB of memory are left, and a standby starts only with {} MiB "
      "(--standby=1 starts it anyway, --standby=0 says nothing)",
      *left >> 20, (2 * kStandbyBytes) >> 20));
  return false;
}

Result<void> Standbys::warm(int local_rank) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Error(ErrorCode::kSystem, fmt::format("make a socket: {}", ::strerrordesc_np(errno)));
  const auto standby = std::make_shared<Standby>(loop_, local_rank);
  standby->socket.assign({}, ends[0]);
  const Cold& cold = cold_[static_cast<std::size_t>(local_rank)];
  SpawnSpec spec{.local_rank = local_rank, .file = cold.file, .argv = cold.argv, .env = cold.env};
  spec.control = FileHandle(ends[1]);
  // What imports print, they printed when the worker was started cold.
  spec.out = FileHandle(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  spec.err = FileHandle(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  add_hook(spec.env, scratch_ + "/hook", kControlFd);
  const auto pid = children_.spawn_standby(spec, cgroup_());
  if (!pid) return pid.error();
  standby->pid = *pid;
  standbys_[static_cast<std::size_t>(local_rank)] = standby;
  hear(standby);
  return {};
}

// Hears `w`, and then the end of the standby.
void Standbys::hear(const std::shared_ptr<Standby>& standby) {
  standby->socket.async_read_some(
      asio::buffer(&standby->word, 1),
      [this, standby](const boost::system::error_code& error, std::size_t /*read*/) {
        // It was let go or dropped meanwhile.
        if (standbys_[static_cast<std::size_t>(standby->local_rank)] != standby) return;
        // A process that an import has started would be there twice.
        if (error || !descendants(standby->pid).empty()) {
          drop(standby->local_rank);
        } else {
          plan_.waits(standby->local_rank);
          hear(standby);
        }
        warm_next();
      });
}

// For want of something that a worker of this program needs: another one would end the same way.
void Standbys::drop(int local_rank) {
  auto& standby = standbys_[static_cast<std::size_t>(local_rank)];
  children_.end_standby(standby->pid);
  standby.reset();
  plan_.unfit(local_rank);
}

void Standbys::end() {
  plan_.give_up();
  look_.set(Time::max());
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
