// Signals as flags name them: --signals-to-handle and --signal-map. A name is the kernel's, in
// capitals, with or without SIG. Pure: it installs no handler; the agent does (SignalPlan in
// agent/core/config.h). Any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun::launcher {

// `SIGTERM` or `TERM`. Nothing for another word. Real-time signals have no names here.
std::optional<int> parse_signal(std::string_view name);

struct SignalList {
  std::vector<int> signals{};          // in the order given, each once
  std::vector<std::string> refused{};  // names of no signal, or of one that cannot be handled
};

// `SIGTERM,SIGUSR1`; blanks around a name are dropped. A bad name is no error, as in torchrun.
SignalList parse_signal_list(std::string_view text);

// `USR1=TERM,USR2=INT`: a received signal and the one it is taken for. An empty text maps nothing.
// Errors are one clause ("expected …").
Result<std::map<int, int>> parse_signal_map(std::string_view text);

}  // namespace ddprun::launcher
