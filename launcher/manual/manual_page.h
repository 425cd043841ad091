// The manual page ddprun(1). Its options are those of the flag table, so it cannot miss one. The
// rest is for a user without the other documents: variables, exit codes, examples. Pure. Main
// thread.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::launcher {

// The page as roff with the macros of man(7).
std::string manual_page(std::string_view version);

}  // namespace ddprun::launcher
