// What of a worker's bytes a person gets to see, on the console and in the failure report. Files
// keep the bytes as they are. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// Appends `text` to `out`; each byte sequence that is no UTF-8 becomes one U+FFFD, as Python's
// errors="replace" counts them (Unicode 15, section 3.9, "maximal subpart"). Returns the bytes of a
// character that is cut off at the end (0 to 3): they are not appended, the caller has the rest.
std::size_t append_utf8(std::string& out, std::string_view text);

// As append_utf8() for a text that is complete: a character cut off at its end is broken as well.
void append_whole_utf8(std::string& out, std::string_view text);

// What a terminal leaves of a line whose parts are overwritten by carriage returns (a progress bar,
// a line end of two bytes): the last part that is not empty.
std::string_view last_update(std::string_view line);

// The last `count` lines of `text` as append_whole_utf8() and last_update() show them, without
// their newlines; the oldest first.
std::vector<std::string> last_lines(std::string_view text, std::size_t count);

}  // namespace ddprun::agent
