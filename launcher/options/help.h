// The command line's own help: the text of --help and the scripts of --print-completion. Both are
// made from the flag table, so they cannot miss a flag. Pure: it prints nothing and knows no
// terminal. Main thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/flag_table.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// The text of --help: torchrun's options, then ddprun's own.
// `called` is the name that ddprun was started by.
std::string help_text(std::string_view called = kProgramName);

// The values of a flag that are words to be typed (`null`, `console`). None if any text will do.
std::vector<std::string> value_words(const Flag& flag);

// A script that teaches `shell` (bash, zsh, tcsh or fish) ddprun's options. Empty for any other
// shell.
std::string completion_script(std::string_view shell);

}  // namespace ddprun::launcher
