#include "agent/monitors/record_watch.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

namespace ddprun::agent {
namespace {

std::string_view folder_of(std::string_view path) { return path.substr(0, path.rfind('/')); }
std::string_view name_of_file(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// All records of a job have one name.
constexpr std::string_view kRecordName = "error.json";

constexpr std::chrono::milliseconds kStart{1000};

}  // namespace

RecordWatch::RecordWatch(asio::io_context& loop, std::chrono::milliseconds limit, Handlers handlers)
    : loop_(loop),
      limit_(limit),
      handlers_(std::move(handlers)),
      alarm_(loop, [this] { look(); }) {}

void RecordWatch::begin(std::vector<std::string> paths) {
  end();
  if (limit_.count() == 0) return;
  paths_ = std::move(paths);
  alarm_.set(now() + std::min(limit_, kStart));
}

void RecordWatch::end() {
  for (const auto& [number, rank] : watched_) ::inotify_rm_watch(stream_->native_handle(), number);
  watched_.clear();
  recorded_.clear();
  paths_.clear();
  alarm_.set(Time::max());
}

void RecordWatch::watch() {
  const std::vector<std::string> paths = std::exchange(paths_, {});
  if (!open()) return;
  for (std::size_t rank = 0; rank < paths.size(); ++rank) {
    if (name_of_file(paths[rank]) != kRecordName) continue;
    const std::string folder(folder_of(paths[rank]));
    const int number =
        ::inotify_add_watch(stream_->native_handle(), folder.c_str(), IN_CLOSE_WRITE | IN_MOVED_TO);
    if (number < 0) continue;
    watched_[number] = static_cast<int>(rank);
    if (::access(paths[rank].c_str(), F_OK) == 0) recorded(static_cast<int>(rank));
  }
}

// Returns whether there is a descriptor.
bool RecordWatch::open() {
  if (stream_) return true;
  const int fd = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (fd < 0) return false;
  stream_.emplace(loop_, fd);
  wait();
  return true;
}

void RecordWatch::wait() {
  stream_->async_wait(Stream::wait_read, [this, alive = std::weak_ptr(alive_)](auto cancelled) {
    if (cancelled || alive.expired()) return;
    read();
    wait();
  });
}

// An event that an earlier attempt left has a number that is watched no more. The kernel gives each
// number once.
void RecordWatch::read() {
  alignas(inotify_event) std::array<char, 4096> bytes;
  const ssize_t got = ::read(stream_->native_handle(), bytes.data(), bytes.size());
  for (std::size_t at = 0; got > 0 && at < static_cast<std::size_t>(got);) {
    inotify_event event{};
    std::memcpy(&event, bytes.data() + at, sizeof event);
    // The name is filled up with zeros.
    const char* const name = bytes.data() + at + sizeof event;
    const auto watched = watched_.find(event.wd);
    if (event.len > 0 && watched != watched_.end() && name == kRecordName)
      recorded(watched->second);
    at += sizeof event + event.len;
  }
}

// A record that is written again counts from the last time.
void RecordWatch::recorded(int local_rank) {
  const Time due = now() + limit_;
  recorded_[local_rank] = {due, handlers_.steps(local_rank)};
  alarm_.set_no_later_than(due);
}

void RecordWatch::look() {
  if (!paths_.empty()) watch();
  std::vector<int> overdue;
  Time next = Time::max();
  const Time at = now();
  for (const auto& [rank, record] : recorded_) {
    if (record.due > at) next = std::min(next, record.due);
    if (record.due <= at && handlers_.steps(rank) == record.steps) overdue.push_back(rank);
  }
  std::erase_if(recorded_, [at](const auto& entry) { return entry.second.due <= at; });
  alarm_.set(next);
  for (const int rank : overdue) handlers_.overdue(rank);
}

}  // namespace ddprun::agent
