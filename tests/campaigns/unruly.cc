// A worker that does not let go easily, for the campaigns: unruly_worker BEHAVIOUR FIFO. It and all
// that it starts write "worker PID" or "descendant PID" to FIFO once BEHAVIOUR is true of them.
// Then they wait. `good` ends with 0 at a signal, `hearing` goes on; the worker says "heard PID"
// then. Whatever a launcher does, all are gone after kLifeSeconds. There are at most 1 +
// kDescendants processes at a time. With the behaviour `forking` there are 1 + 2 * kComets.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

constexpr int kDescendants = 3;  // so that a random one is not always the same
constexpr int kComets = 8;       // enough to keep every CPU busy with forking
constexpr unsigned kLifeSeconds = 60;
constexpr int kDeafTo[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};

int fifo = -1;
pid_t worker = 0;
std::string heard;
std::chrono::steady_clock::time_point last_moment;

// A child does not inherit its parent's alarm.
void limit_life() { ::alarm(kLifeSeconds); }

void say_ready() {
  const std::string name = ::getpid() == worker ? "worker " : "descendant ";
  const std::string line = name + std::to_string(::getpid()) + "\n";
  if (::write(fifo, line.data(), line.size()) != static_cast<ssize_t>(line.size())) ::_exit(9);
}

[[noreturn]] void wait_for_the_end() {
  for (;;) ::pause();
}

// Runs `body` in a child, which never returns.
template <typename Body>
void in_child(Body body) {
  const pid_t child = ::fork();
  if (child < 0) ::_exit(8);
  if (child > 0) return;
  limit_life();
  body();
  ::_exit(0);
}

[[noreturn]] void live() {
  say_ready();
  wait_for_the_end();
}

[[noreturn]] void stop() {
  say_ready();
  ::raise(SIGSTOP);
  wait_for_the_end();
}

// Always one step ahead. A process is only there to start the next one, in a session of its own. A
// list of processes is out of date before it has been read.
[[noreturn]] void fly() {
  say_ready();
  while (std::chrono::steady_clock::now() < last_moment) {
    const pid_t child = ::fork();
    if (child > 0) ::_exit(0);
    ::setsid();
  }
  ::_exit(0);
}

void start_descendants(std::string_view behaviour) {
  for (int i = 0; i < kDescendants; ++i) {
    if (behaviour == "double-fork") {
      in_child([] { in_child(live); });
      ::wait(nullptr);
    } else if (behaviour == "setsid") {
      in_child([] {
        ::setsid();
        live();
      });
    } else {
      in_child(behaviour == "stopped" ? stop : live);
    }
  }
}

void be_deaf() {
  for (const int signo : kDeafTo) ::signal(signo, SIG_IGN);
}

// In one write(2), which a signal handler may do.
void say_heard() {
  const auto size = static_cast<ssize_t>(heard.size());
  if (::getpid() == worker && ::write(fifo, heard.data(), heard.size()) != size) ::_exit(9);
}

void end_well_when_told() {
  for (const int signo : kDeafTo) {
    ::signal(signo, [](int) {
      say_heard();
      ::_exit(0);
    });
  }
}

void hear_and_go_on() {
  for (const int signo : kDeafTo) ::signal(signo, [](int) { say_heard(); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: unruly_worker good|hearing|deaf|double-fork|setsid|stopped|forking FIFO\n",
               stderr);
    return 2;
  }
  const std::string_view behaviour = argv[1];
  worker = ::getpid();
  heard = "heard " + std::to_string(worker) + "\n";
  limit_life();
  last_moment = std::chrono::steady_clock::now() + std::chrono::seconds(kLifeSeconds);
  fifo = ::open(argv[2], O_WRONLY | O_CLOEXEC);
  if (fifo < 0) return 9;
  if (behaviour == "good") {
    end_well_when_told();
    live();
  }
  if (behaviour == "deaf") be_deaf();
  if (behaviour == "hearing") hear_and_go_on();
  if (behaviour == "forking") {
    for (int i = 0; i < kComets; ++i) in_child(fly);
  } else {
    start_descendants(behaviour);
  }
  if (behaviour == "stopped") stop();
  live();
}
