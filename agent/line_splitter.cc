#include "agent/line_splitter.h"

namespace ddprun::agent {

std::string LineSplitter::take(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::size_t room = kConsoleLineBytes - partial_.size();
    if (newline < room) {
      append_line(out, bytes.substr(0, newline));
      bytes.remove_prefix(newline + 1);
    } else if (bytes.size() >= room) {
      append_line(out, bytes.substr(0, room));
      bytes.remove_prefix(room);
    } else {
      partial_ += bytes;
      return out;
    }
  }
  return out;
}

std::string LineSplitter::finish() {
  std::string out;
  if (!partial_.empty()) append_line(out, {});
  return out;
}

void LineSplitter::append_line(std::string& out, std::string_view end_of_line) {
  out += prefix_;
  out += partial_;
  out += end_of_line;
  out += '\n';
  partial_.clear();
}

}  // namespace ddprun::agent
