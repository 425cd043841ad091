// Makes foreign text harmless in a text of ours. Bytes that are no UTF-8 become U+FFFD, since both
// formats must be UTF-8. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::http {

// Each byte that belongs to no well-formed sequence (Unicode 15, table 3-7) is replaced.
std::string valid_utf8(std::string_view text);

// For HTML, as the text of an element or the value of a quoted attribute. Control characters become
// U+FFFD: HTML has none of them.
std::string escape_html(std::string_view text);

// For the value of a Prometheus label, without its quotes. Each byte that a terminal would obey
// becomes `\xNN`: two names never become one.
std::string escape_label(std::string_view text);

}  // namespace ddprun::http
