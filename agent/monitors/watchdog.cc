#include "agent/monitors/watchdog.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "agent/core/lifecycle.h"
#include "base/duration.h"
#include "base/file_handle.h"
#include "base/limit_hint.h"
#include "base/log.h"
#include "base/signal_name.h"

namespace ddprun::agent {
namespace {

using std::chrono::system_clock;

// The longest that the timer is set for; then the deadline is looked at again. A worker may write a
// number that no time_point can hold. A timer set to that would fire at once, for ever.
constexpr std::chrono::hours kLookAhead{24};

double unix_now() { return in_seconds(system_clock::now().time_since_epoch()); }

// A new folder of our own: nobody else can have put a FIFO into it. Empty, with errno, if it cannot
// be made.
std::string make_own_folder() {
  const char* base = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe): nobody writes it
  std::string folder =
      fmt::format("{}/ddprun_timer_XXXXXX", base != nullptr && *base != '\0' ? base : "/tmp");
  return ::mkdtemp(folder.data()) == nullptr ? std::string() : folder;
}

Error failed(const std::string& path, int why) {
  return {ErrorCode::kSystem,
          fmt::format("TORCHELASTIC_TIMER_FILE={}: expected a path for a FIFO: {}", path,
                      describe_errno(why))};
}

Error foreign(const std::string& path, uid_t owner) {
  return {ErrorCode::kSystem,
          fmt::format("TORCHELASTIC_TIMER_FILE={}: it belongs to another user (uid {}), who could "
                      "have the workers killed; leave the variable out, and a FIFO is made",
                      path, owner)};
}

// Opens the FIFO. If it is not there it is made, and `made` is true; else it is the user's.
Result<FileHandle> open_fifo(const std::string& path, bool& made) {
  constexpr mode_t kOwnerOnly = 0600;
  made = ::mkfifo(path.c_str(), kOwnerOnly) == 0;
  if (!made && errno != EEXIST) return failed(path, errno);
  const FileHandle named(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat facts {};
  if (named.get() < 0 || ::fstat(named.get(), &facts) != 0) return failed(path, errno);
  if (!S_ISFIFO(facts.st_mode)) return failed(path, EEXIST);
  // A process that may write to it may have our workers killed.
  if (facts.st_uid != ::geteuid() && facts.st_uid != 0) return foreign(path, facts.st_uid);
  // For writing too. If we only read, the FIFO would be at its end whenever the last worker closes
  // it. The loop would wake up again and again.
  const std::string same = fmt::format("/proc/self/fd/{}", named.get());
  FileHandle fifo(::open(same.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (fifo.get() < 0) return failed(path, errno);
  return fifo;
}

}  // namespace

Result<std::unique_ptr<Watchdog>> Watchdog::make(asio::io_context& loop, const std::string& path,
                                                 std::function<bool(int pid)> is_ours) {
  Place place{.path = path, .folder = path.empty() ? make_own_folder() : std::string()};
  if (path.empty() && place.folder.empty()) return failed("(a new folder)", errno);
  if (path.empty()) place.path = place.folder + "/" + kTimerName;
  auto fifo = open_fifo(place.path, place.made);
  if (!fifo) {
    place.remove();
    return fifo.error();
  }
  // The constructor is private: make_unique cannot reach it.
  return std::unique_ptr<Watchdog>(
      new Watchdog(loop, std::move(place), fifo->release(), std::move(is_ours)));
}

Watchdog::Watchdog(asio::io_context& loop, Place place, int fd,
                   std::function<bool(int pid)> is_ours)
    : place_(std::move(place)), fifo_(loop, fd), timer_(loop), is_ours_(std::move(is_ours)) {
  wait_for_requests();
}

Watchdog::~Watchdog() { place_.remove(); }

void Watchdog::Place::remove() const {
  if (made) ::unlink(path.c_str());
  if (!folder.empty()) ::rmdir(folder.c_str());
}

void Watchdog::wait_for_requests() {
  fifo_.async_wait(asio::posix::stream_descriptor::wait_read,
                   [this](boost::system::error_code cancelled) {
                     if (cancelled) return;
                     read_requests();
                     wait_for_requests();
                   });
}

void Watchdog::read_requests() {
  std::array<char, kMaxTimerLineBytes> buffer;
  const ssize_t got = ::read(fifo_.native_handle(), buffer.data(), buffer.size());
  if (got <= 0) return;
  pending_.append(buffer.data(), static_cast<std::size_t>(got));
  take_lines();
  kill_expired();
}

// Applies every whole line. The start of the next line stays in pending_ until its rest arrives.
void Watchdog::take_lines() {
  for (auto end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n')) {
    const auto applied = table_.apply(std::string_view(pending_).substr(0, end));
    if (!applied) log::warning(applied.error().message());
    pending_.erase(0, end + 1);
  }
  // A worker that never ends its line must not fill our memory.
  if (pending_.size() <= kMaxTimerLineBytes) return;
  log::warning("watchdog: a request without end is dropped");
  pending_.clear();
}

void Watchdog::forget(int pid) {
  table_.forget(pid);
  set_timer();
}

// Sets the timer to the earliest deadline, or stops it if there is none. Deadlines are times of the
// wall clock, so the timer follows that clock too.
void Watchdog::set_timer() {
  const auto next = table_.next();
  if (!next) {
    timer_.cancel();
    return;
  }
  const std::chrono::duration<double> ahead(*next - unix_now());
  timer_.expires_after(std::chrono::duration_cast<system_clock::duration>(
      std::min<std::chrono::duration<double>>(ahead, kLookAhead)));
  timer_.async_wait([this](boost::system::error_code cancelled) {
    if (!cancelled) kill_expired();
  });
}

void Watchdog::kill_expired() {
  for (const ExpiredTimer& timer : table_.take_expired(unix_now())) {
    if (!is_ours_(timer.pid)) continue;  // the process is gone, or it is not of this job
    ::kill(timer.pid, timer.signo);      // before the warning: a console may be stuck
    log::warning(fmt::format("watchdog: the deadline '{}' of process {} has passed: sent {}",
                             timer.scope, timer.pid, signal_name(timer.signo)));
  }
  set_timer();
}

}  // namespace ddprun::agent
