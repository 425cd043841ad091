// A manual page from a program's --help: what the help says, the page says, so it cannot miss a
// flag. Pure. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::daemon {

struct HelpPage {
  std::string_view name;  // of the program
  int section = 1;        // of the manual: 1 programs of users, 8 of administrators
  std::string_view summary;
  std::string_view version;
  std::string_view see_also;  // roff: `.BR ddprun (1)`
};

// The page as roff with the macros of man(7). `help` is UTF-8, made so. It has a line `usage:
// PROGRAM WORDS`, and paragraphs, in which indented lines are examples. After an empty line or a
// title (`options:`) come entries ` WORDS TEXT`. Their text may go on below, further in. Entries
// without a title are the options. A title may have its text beside it: `exit codes: 0 …`.
std::string help_page(const HelpPage& page, std::string_view help);

}  // namespace ddprun::daemon
