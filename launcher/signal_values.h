// Signals as flags name them: --signals-to-handle and --signal-map. Names are the kernel's, with or
// without SIG, in capitals. Pure; installs nothing.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/result.h"

namespace ddprun::launcher {

// `SIGTERM` or `TERM`; nothing for other words. Real-time signals have no names here.
std::optional<int> parse_signal(std::string_view name);

struct SignalList {
  std::vector<int> signals{};          // in the order given, each once
  std::vector<std::string> refused{};  // names of no signal, or of one that cannot be handled
};

// `SIGTERM,SIGUSR1`; blanks around a name are dropped. As with torchrun bad names are no error.
SignalList parse_signal_list(std::string_view text);

// `USR1=TERM,USR2=INT`: received signal -> what it is taken for; empty text: nothing. Errors are
// one clause ("expected …").
Result<std::map<int, int>> parse_signal_map(std::string_view text);

}  // namespace ddprun::launcher
