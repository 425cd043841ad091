// The program of a pod whose image has nothing but it and ddprun, so it is linked statically. Its
// argument says what it does:
//   say     prints who it is and what it may do
//   orphan  leaves a grandchild, which ends when a byte comes from /tmp/gate; ends by /tmp/door
//   save    is told to end; then it waits for a byte of /tmp/gate and writes /tmp/saved-RANK
//   fail    exits with 7
// Its messages to the test go through the named pipe /tmp/ready, a line each.
#include <fcntl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

namespace {

constexpr int kBroken = 9;  // an exit code that no test expects
volatile std::sig_atomic_t told_to_end = 0;

std::string variable(const char* name) {
  const char* found = std::getenv(name);
  return found != nullptr ? found : "";
}

void tell(const std::string& words) {
  const std::string line = words + "\n";
  const int pipe = ::open("/tmp/ready", O_WRONLY | O_CLOEXEC);
  const auto written = ::write(pipe, line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size())) std::_Exit(kBroken);
  ::close(pipe);
}

void wait_for_byte(const char* path) {
  const int pipe = ::open(path, O_RDONLY | O_CLOEXEC);
  char byte = 0;
  ssize_t got = -1;
  do {
    got = ::read(pipe, &byte, 1);
  } while (got < 0 && errno == EINTR);
  if (got != 1) std::_Exit(kBroken);
  ::close(pipe);
}

// Returns the text behind `name` and a tab on its line of /proc/self/status.
std::string status_of(std::string_view name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return line.substr(name.size() + 1);
  }
  return "?";
}

int say() {
  std::string first;
  std::getline(std::ifstream("/proc/1/comm"), first);
  const int file = ::open("/written", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  const char* root = file >= 0 ? "writable" : std::strerror(errno);
  std::printf("rank %s of %s: user %d, capabilities %s, process 1 is %s, root: %s\n",
              variable("RANK").c_str(), variable("WORLD_SIZE").c_str(),
              static_cast<int>(::getuid()), status_of("CapEff:").c_str(), first.c_str(), root);
  return 0;
}

int leave_an_orphan() {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::fork() == 0) {
      tell("orphan " + std::to_string(::getpid()));
      wait_for_byte("/tmp/gate");
    }
    std::_Exit(0);
  }
  if (::waitpid(child, nullptr, 0) != child) return kBroken;
  wait_for_byte("/tmp/door");
  return 0;
}

int save() {
  sigset_t term, none;
  ::sigemptyset(&none);
  ::sigemptyset(&term);
  ::sigaddset(&term, SIGTERM);
  // It can only come while it is waited for.
  ::sigprocmask(SIG_BLOCK, &term, nullptr);
  ::signal(SIGTERM, [](int) { told_to_end = 1; });
  tell("waits");
  while (told_to_end == 0) ::sigsuspend(&none);
  tell("saves");
  wait_for_byte("/tmp/gate");
  std::ofstream("/tmp/saved-" + variable("RANK")) << "weights\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view act = argc > 1 ? argv[1] : "";
  if (act == "say") return say();
  if (act == "orphan") return leave_an_orphan();
  if (act == "save") return save();
  return act == "fail" ? 7 : kBroken;
}
