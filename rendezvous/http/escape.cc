#include "rendezvous/http/escape.h"

#include <algorithm>
#include <cstddef>

namespace ddprun::http {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

unsigned byte_at(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
}

// The length of the sequence that `text` begins with; 0: it is ill-formed.
std::size_t sequence_length(std::string_view text) {
  const unsigned first = byte_at(text, 0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return 0;
  // Overlong forms, surrogates and what lies beyond U+10FFFF differ in the second byte.
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte_at(text, 1) < low || byte_at(text, 1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i)
    if ((byte_at(text, i) & 0xC0U) != 0x80U) return 0;
  return length;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    valid += length == 0 ? kReplacement : text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return valid;
}

std::string escape_html(std::string_view text) {
  std::string escaped;
  for (const char letter : valid_utf8(text)) {
    const auto code = static_cast<unsigned char>(letter);
    const bool is_control = (code < 0x20 && letter != '\n' && letter != '\t') || code == 0x7F;
    if (is_control) {
      escaped += kReplacement;
    } else if (letter == '&') {
      escaped += "&amp;";
    } else if (letter == '<') {
      escaped += "&lt;";
    } else if (letter == '>') {
      escaped += "&gt;";
    } else if (letter == '"') {
      escaped += "&quot;";
    } else if (letter == '\'') {
      escaped += "&#39;";
    } else {
      escaped += letter;
    }
  }
  return escaped;
}

std::string escape_label(std::string_view text) {
  std::string escaped;
  for (const char letter : valid_utf8(text)) {
    if (letter == '\n') {
      escaped += "\\n";
    } else if (letter == '\\' || letter == '"') {
      escaped += '\\';
      escaped += letter;
    } else {
      escaped += letter;
    }
  }
  return escaped;
}

}  // namespace ddprun::http
