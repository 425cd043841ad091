#include "agent/preemption/notice_look.h"

#include <sys/stat.h>

#include <utility>

namespace ddprun::agent {

NoticeLook::NoticeLook(asio::io_context& loop, std::string path, std::function<void()> noticed,
                       std::chrono::milliseconds every)
    : path_(std::move(path)),
      noticed_(std::move(noticed)),
      every_(every),
      before_(facts()),
      alarm_(loop, [this] { look(); }) {}

std::optional<NoticeLook::Facts> NoticeLook::facts() const {
  struct stat found {};
  if (path_.empty() || ::stat(path_.c_str(), &found) != 0) return std::nullopt;
  return Facts{.inode = found.st_ino,
               .size = found.st_size,
               .changed_ns = found.st_mtim.tv_sec * 1'000'000'000 + found.st_mtim.tv_nsec};
}

void NoticeLook::begin() {
  if (!path_.empty()) alarm_.set(now() + every_);
}

void NoticeLook::look() {
  const auto found = facts();
  if (!found || found == before_) return begin();
  noticed_();
}

}  // namespace ddprun::agent
