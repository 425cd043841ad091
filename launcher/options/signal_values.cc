#include "launcher/options/signal_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "launcher/options/flag_values.h"

namespace ddprun::launcher {
namespace {

// The last signal with a name of its own (signal(7)).
constexpr int kLastSignal = 31;

// Calls `each` for every part of `text` between commas, without blanks around it.
template <typename Each>
void for_parts(std::string_view text, Each each) {
  while (true) {
    const auto comma = std::min(text.find(','), text.size());
    each(trimmed(text.substr(0, comma)));
    if (comma == text.size()) return;
    text.remove_prefix(comma + 1);
  }
}

// KILL and STOP reach no handler. CHLD tells the end of a worker. With the others the kernel says
// that a process has crashed, and after a handler it would crash again.
bool can_be_handled(int signal) {
  constexpr int kNever[] = {SIGKILL, SIGSTOP, SIGCHLD, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
  return std::find(std::begin(kNever), std::end(kNever), signal) == std::end(kNever);
}

}  // namespace

std::optional<int> parse_signal(std::string_view name) {
  if (name.starts_with("SIG")) name.remove_prefix(3);
  for (int signal = 1; signal <= kLastSignal; ++signal) {
    // The kernel's name without SIG; nullptr for a number without a name.
    const char* known = ::sigabbrev_np(signal);
    if (known != nullptr && name == known) return signal;
  }
  return std::nullopt;
}

SignalList parse_signal_list(std::string_view text) {
  SignalList list;
  for_parts(text, [&list](std::string_view name) {
    const auto signal = parse_signal(name);
    if (!signal || !can_be_handled(*signal)) {
      list.refused.emplace_back(name);
    } else if (std::find(list.signals.begin(), list.signals.end(), *signal) == list.signals.end()) {
      list.signals.push_back(*signal);
    }
  });
  return list;
}

Result<std::map<int, int>> parse_signal_map(std::string_view text) {
  std::map<int, int> map;
  // Without this line the empty text would be one bad pair.
  if (text.empty()) return map;
  std::string wrong;
  for_parts(text, [&](std::string_view pair) {
    const auto equals = std::min(pair.find('='), pair.size());
    const auto from = parse_signal(trimmed(pair.substr(0, equals)));
    const auto to = parse_signal(trimmed(pair.substr(std::min(equals + 1, pair.size()))));
    if (!from || !to) {
      wrong = "pairs of signals, such as USR1=TERM,USR2=INT";
    } else if (!can_be_handled(*from)) {
      wrong = fmt::format("a signal before the = that can be handled, which SIG{} cannot",
                          ::sigabbrev_np(*from));
    } else {
      map[*from] = *to;
    }
  });
  if (!wrong.empty()) return Error(ErrorCode::kInvalidArgument, "expected " + wrong);
  return map;
}

}  // namespace ddprun::launcher
