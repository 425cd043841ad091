#include "agent/preemption/notice_look.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"

namespace ddprun::agent {
namespace {

// A look at a file that answers takes less than a millisecond.
constexpr std::chrono::milliseconds kShortWait{10};
// After so many turns without an answer one line says so.
constexpr int kLateTurns = 3;

}  // namespace

NoticeLook::NoticeLook(asio::io_context& loop, std::string path, std::function<void()> noticed,
                       std::chrono::milliseconds every)
    : path_(std::move(path)),
      noticed_(std::move(noticed)),
      every_(every),
      file_(path_, 0),
      alarm_(loop, [this] { look(); }) {
  if (!path_.empty()) file_.begin();
}

void NoticeLook::begin() {
  if (!path_.empty()) alarm_.set(now() + every_);
}

bool NoticeLook::is_notice(const FileContent& found) {
  if (!before_) before_ = found;
  return found.is_there && found != *before_;
}

void NoticeLook::look() {
  begin();
  const auto late = file_.until(now());
  if (late && is_notice(*late)) return tell();
  const bool is_new = file_.begin();
  if (is_new) asked_ = now();
  const auto found = file_.until(is_new ? asked_ + kShortWait : now());
  if (found && is_notice(*found)) return tell();
  if (found || has_warned_ || now() - asked_ < every_ * kLateTurns) return;
  has_warned_ = true;
  log::warning(fmt::format(
      "--preempt-file={}: the file does not answer; its notice would come late", path_));
}

void NoticeLook::tell() {
  end();
  noticed_();
}

}  // namespace ddprun::agent
