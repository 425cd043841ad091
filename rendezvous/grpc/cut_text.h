// Texts that are too long for a message. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>

namespace ddprun::rendezvous {

// Returns at most `max` bytes of the text. No character of UTF-8 is cut in two.
inline std::string cut(const std::string& text, std::size_t max) {
  if (text.size() <= max) return text;
  std::size_t end = max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end);
}

}  // namespace ddprun::rendezvous
