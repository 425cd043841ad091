#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "base/process_end.h"
#include "launcher/scheduler/deadlines.h"
#include "proto/token_file.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kMaxAnswerBytes = 64U << 10U;

// Starts the program with its output in `out`, our variables but the token, and nothing else of
// ours. 0: it is not there.
pid_t start(const std::vector<std::string>& words, int out) {
  std::vector<std::string> copies = words;
  std::vector<char*> argv;
  argv.reserve(copies.size() + 1);
  for (std::string& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<char*> variables;
  const std::string token = std::string(kTokenVariable) + "=";
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with(token)) variables.push_back(*entry);
  }
  variables.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, argv[0], &files, nullptr, argv.data(), variables.data());
  ::posix_spawn_file_actions_destroy(&files);
  return failed == 0 ? pid : 0;
}

// Returns the bytes up to the end of the output. Nothing if that did not come in time.
std::optional<std::string> read_all(int in, std::chrono::steady_clock::time_point end) {
  std::string text;
  std::array<char, 4096> piece{};
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd ready{.fd = in, .events = POLLIN, .revents = 0};
    const int polled = left.count() > 0 ? ::poll(&ready, 1, static_cast<int>(left.count())) : 0;
    if (polled < 0 && errno == EINTR) continue;
    if (polled <= 0) return std::nullopt;
    const auto got = ::read(in, piece.data(), piece.size());
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    if (text.size() < kMaxAnswerBytes) text.append(piece.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

std::optional<std::string> run_program(const std::vector<std::string>& words,
                                       std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  const pid_t pid = start(words, ends[1]);
  ::close(ends[1]);
  auto answer = pid == 0 ? std::nullopt : read_all(ends[0], end);
  ::close(ends[0]);
  if (pid == 0) return std::nullopt;
  // A program that closed its output may live on.
  if (!answer || !ends_by(pid, end)) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
  return answer;
}

}  // namespace ddprun::launcher
