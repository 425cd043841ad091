#include "agent/tee_sink.h"

#include <cerrno>

namespace ddprun::agent {
namespace {

// The disk may be full: the console still gets the text, the rest of the file is lost.
void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void Screen::push() {
  console_.write(lines_.take_text());
  write_all(filtered_.get(), lines_.take_filtered());
}

void TeeSink::take(std::string_view bytes, Time now) {
  write_all(file_.get(), bytes);
  while (const auto piece = splitter_.next(bytes, now)) screen_.lines().show(source_, *piece, now);
  screen_.push();
}

void TeeSink::finish(Time now) {
  if (const auto piece = splitter_.finish()) screen_.lines().show(source_, *piece, now);
  screen_.push();
  file_.close();
}

void TeeSink::interrupt() {
  splitter_.interrupt();
  screen_.lines().interrupt();
  screen_.push();
}

void TeeSink::time_passed(Time now) {
  screen_.lines().time_passed(now);
  screen_.push();
}

}  // namespace ddprun::agent
