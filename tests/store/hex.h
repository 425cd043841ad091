// Bytes written as hex in tests, as the captures in docs/store.md are.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::store {

// "00 cef7" -> three bytes. Blanks are skipped; anything else but hex digits is a mistake in the
// test.
inline std::string unhex(std::string_view text) {
  std::string bytes;
  int high = -1;
  for (const char c : text) {
    if (c == ' ') continue;
    const int digit = c >= 'a' ? c - 'a' + 10 : c - '0';
    if (high < 0) {
      high = digit;
    } else {
      bytes.push_back(static_cast<char>(high * 16 + digit));
      high = -1;
    }
  }
  return bytes;
}

}  // namespace ddprun::store
