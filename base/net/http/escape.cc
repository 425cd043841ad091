#include "base/net/http/escape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "base/shown_text.h"

namespace ddprun::http {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_sequence(text);
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
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t unshown = unshown_sequence(rest);
    const std::size_t length = unshown > 0 ? unshown : utf8_sequence(rest);
    if (rest.front() == '\n') {
      escaped += "\\n";
    } else if (rest.front() == '\\' || rest.front() == '"') {
      escaped += '\\';
      escaped += rest.front();
    } else if (unshown > 0) {
      for (const char byte : rest.substr(0, unshown))
        escaped += fmt::format(R"(\\x{:02x})", static_cast<unsigned char>(byte));
    } else {
      escaped += length == 0 ? kReplacement : rest.substr(0, length);
    }
    rest.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return escaped;
}

}  // namespace ddprun::http
