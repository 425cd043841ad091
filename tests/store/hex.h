// Bytes written as hex in tests: what goes over a connection of the store (docs/store.md, Bytes).
#pragma once

#include <string>
#include <string_view>

namespace ddprun::store {

// "00 cef7" -> three bytes. Skips blanks. All other characters must be lower-case hex digits; that
// is not checked.
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
