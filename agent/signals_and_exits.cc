#include "agent/signals_and_exits.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

namespace ddprun::agent {

SignalsAndExits::SignalsAndExits(asio::io_context& loop, const SignalPlan& plan,
                                 const AgentStart& start)
    : plan_(plan),
      child_signal_(loop, SIGCHLD),
      direct_signals_(loop),
      guardian_(loop, start.guardian_pipe) {
  const auto& ignored = start.ignored_signals;
  for (const int signo : handled_signals(plan)) {
    // A signal that was ignored when ddprun was started (nohup) stays ignored.
    if (std::find(ignored.begin(), ignored.end(), signo) != ignored.end()) continue;
    // A user may list SIGKILL or SIGSTOP. The kernel lets nobody handle these; that is no error.
    boost::system::error_code not_ours;
    direct_signals_.add(signo, not_ours);
  }
}

void SignalsAndExits::listen(Handlers handlers) {
  handlers_ = std::move(handlers);
  wait_for_child();
  wait_for_signal();
  wait_for_guardian();
}

void SignalsAndExits::wait_for_child() {
  child_signal_.async_wait([this](boost::system::error_code cancelled, int) {
    if (cancelled) return;
    // Wait again before reaping. A child that dies while we reap raises the next SIGCHLD.
    wait_for_child();
    handlers_.child_died();
  });
}

// Signals that reach the agent directly, not through the guardian. A message among them is dropped.
// The sender signalled every process of the job, so the workers have it already. A second copy
// would look like a second message to them.
void SignalsAndExits::wait_for_signal() {
  direct_signals_.async_wait([this](boost::system::error_code cancelled, int received) {
    if (cancelled) return;
    wait_for_signal();
    const SignalMeaning meaning = meaning_of(plan_, received);
    if (!meaning.is_message && requests_.direct(received)) request(meaning);
  });
}

void SignalsAndExits::wait_for_guardian() {
  guardian_.async_wait(asio::posix::stream_descriptor::wait_read,
                       [this](boost::system::error_code cancelled) {
                         if (cancelled) return;
                         if (!read_guardian()) return handlers_.guardian_died();
                         wait_for_guardian();
                       });
}

// Reads what the guardian wrote, one byte a signal. False at the end of the file: the guardian is
// dead.
bool SignalsAndExits::read_guardian() {
  std::array<unsigned char, 64> signals{};
  const ssize_t got = ::read(guardian_.native_handle(), signals.data(), signals.size());
  // A wake-up without data is no end of file: only a read of 0 bytes is.
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  for (ssize_t i = 0; i < got; ++i) passed_on(signals.at(static_cast<std::size_t>(i)));
  return got > 0;
}

void SignalsAndExits::passed_on(int received) {
  const SignalMeaning meaning = meaning_of(plan_, received);
  if (meaning.is_message) {
    handlers_.message(meaning.signo);
  } else if (requests_.passed_on(received)) {
    request(meaning);
  }
}

void SignalsAndExits::request(const SignalMeaning& meaning) {
  const bool is_first = !std::exchange(is_noticed_, true);
  if (meaning.is_notice && is_first) return handlers_.notice(meaning.signo);
  handlers_.stop_requested(meaning.signo);
}

}  // namespace ddprun::agent
