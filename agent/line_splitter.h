// Cuts a worker's output into whole lines for the console, each with its prefix. Pure; the file
// gets the bytes untouched.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::agent {

// A line longer than this is shown in pieces, each on a line of its own: the text held back per
// stream stays bounded.
inline constexpr std::size_t kConsoleLineBytes = std::size_t{1} << 20;

class LineSplitter {
 public:
  explicit LineSplitter(std::string prefix) : prefix_(std::move(prefix)) {}

  // Takes more output; returns the lines that are now whole, prefixed, each ending in a newline.
  // May be empty.
  std::string take(std::string_view bytes);
  // The rest, at the end of the stream: an unfinished last line is shown as one.
  std::string finish();

 private:
  void append_line(std::string& out, std::string_view end_of_line);

  std::string prefix_;
  std::string partial_;  // the line that has no newline yet; below kConsoleLineBytes
};

}  // namespace ddprun::agent
