// What the command line says of itself: the text of --help and the scripts of --print-completion,
// both made from the flag table. Pure; prints nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/flag_table.h"

namespace ddprun::launcher {

// The text of --help: torchrun's options, then ddprun's own.
std::string help_text();

// The values of a flag that can be named in advance (`null`, `console`); none for free text.
std::vector<std::string> value_words(const Flag& flag);

// A script that teaches `shell` (bash, zsh or tcsh) ddprun's options; empty for another shell.
std::string completion_script(std::string_view shell);

}  // namespace ddprun::launcher
