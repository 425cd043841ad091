// Plain text as roff takes it (groff_char(7), man(7)). A manual page then shows the text as it is,
// in every locale. Pure. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::launcher {

// `text` is UTF-8. A hyphen becomes a minus, so that an option can be copied out of the page. Other
// characters that roff would change, and those outside ASCII, become their names. A byte that is no
// UTF-8 becomes U+FFFD. A line that begins with a dot or a quote is no request.
std::string roff(std::string_view text);

}  // namespace ddprun::launcher
