#include "agent/output/tee_sink.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/limit_hint.h"
#include "base/log.h"

namespace ddprun::agent {

// After an error the rest of `bytes` is lost. But the next call tries again: the disk may have room
// by then.
void CopyFile::write(std::string_view bytes) {
  while (file_.get() >= 0 && !bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return warn(errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

// Once for each file: a full disk stays full, and the log must not fill up too.
void CopyFile::warn(int why) {
  if (std::exchange(warned_, true)) return;
  std::error_code unnamed;
  const auto path = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", file_.get()),
                                                  unnamed);  // proc(5)
  log::warning(fmt::format("write {}: {}; what cannot be written is missing there", path.string(),
                           describe_errno(why)));
}

void TeeConsole::push() {
  console_.write(lines_.take_text());
  filtered_.write(lines_.take_filtered());
}

// The file comes first: next() shortens `bytes`.
void TeeSink::take(std::string_view bytes, Time now) {
  file_.write(bytes);
  while (const auto piece = splitter_.next(bytes, now)) console_.lines().show(source_, *piece, now);
  console_.push();
}

void TeeSink::finish(Time now) {
  if (const auto piece = splitter_.finish()) console_.lines().show(source_, *piece, now);
  console_.push();
  file_.close();
}

void TeeSink::interrupt() {
  splitter_.interrupt();
  console_.lines().interrupt();
  console_.push();
}

void TeeSink::time_passed(Time now) {
  console_.lines().time_passed(now);
  console_.push();
}

}  // namespace ddprun::agent
