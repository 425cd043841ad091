// Turns a worker's bytes into text for people: for the console and for the failure report. Files do
// not come through here; they keep the bytes as they are. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// Appends `text` to `out`. Each byte sequence that is not UTF-8 becomes one U+FFFD. It is cut as by
// Python's errors="replace" (Unicode 15, section 3.9, "maximal subpart"). If `text` ends within a
// character, the bytes of that character are not appended. Returns how many they are (0 to 3): put
// them in front of the next text.
std::size_t append_utf8(std::string& out, std::string_view text);

// As append_utf8(), for a text that is complete: a character that is cut off at the end becomes
// U+FFFD too.
void append_whole_utf8(std::string& out, std::string_view text);

// Returns the part of a line that a terminal shows if carriage returns overwrite the earlier ones.
// It is the last part that is not empty. Progress bars are such lines, and lines that end in
// "\r\n".
std::string_view last_update(std::string_view line);

// The last `count` lines of `text`, the oldest first, without newlines. Each is shown as
// last_update() and append_whole_utf8() show it.
std::vector<std::string> last_lines(std::string_view text, std::size_t count);

}  // namespace ddprun::agent
