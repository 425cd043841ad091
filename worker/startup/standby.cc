#include "worker/startup/standby.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/file_handle.h"
#include "proto/standby.h"
#include "worker/startup/gpu_files.h"

namespace ddprun::worker {
namespace {

// These differ in each attempt. A program reads them after bootstrap(), if at all.
constexpr std::array<std::string_view, 3> kOfAnAttempt = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE",
                                                          "TORCHELASTIC_RESTART_COUNT"};
// More than an environment can have (execve(2): a quarter of the stack's limit).
constexpr std::size_t kMostBytes = std::size_t{64} << 20;
// The most bytes that are printed before the release; so much fits a pipe whose reader is busy.
constexpr std::size_t kPrintedBytes = std::size_t{32} << 10;

// The program may read them before bootstrap(), so they are given back before main().
[[gnu::constructor]] void show_hidden_variables() {
  // NOLINTBEGIN(concurrency-mt-unsafe): there is one thread
  for (const char* name : kHiddenVariables) {
    const std::string hidden = hidden_name(name);
    const char* const value = std::getenv(hidden.c_str());
    if (value == nullptr) continue;
    ::setenv(name, value, 1);
    ::unsetenv(hidden.c_str());
  }
  // NOLINTEND(concurrency-mt-unsafe)
}

// The descriptor of the agent's connection. Nothing if this is a worker, or a worker has started
// us.
std::optional<int> connection() {
  const char* told = std::getenv(kHookVariable);  // NOLINT(concurrency-mt-unsafe): one thread
  if (told == nullptr) return std::nullopt;
  const std::string text = told;
  ::unsetenv(kHookVariable);  // NOLINT(concurrency-mt-unsafe)
  int agent = 0;
  int fd = -1;
  if (std::sscanf(text.c_str(), "%d:%d", &agent, &fd) != 2) return std::nullopt;
  // A program between the agent and us, a shell for instance, cannot become a worker.
  if (agent != ::getppid()) ::_exit(1);
  return fd;
}

[[noreturn]] void refuse(int agent, const std::string& why) {
  [[maybe_unused]] const auto sent =
      ::send(agent, ("!" + why).data(), why.size() + 1, MSG_NOSIGNAL);
  ::_exit(1);
}

// Says why no worker may come of this process. Empty if nothing is in the way.
std::string spoiled() {
  namespace fs = std::filesystem;
  std::error_code gone;
  if (std::distance(fs::directory_iterator("/proc/self/task", gone), {}) > 1)
    return "it has started a thread before bootstrap()";
  const std::string path = open_gpu_file();
  return path.empty() ? "" : "it has opened " + path + " before bootstrap()";
}

struct Release {
  std::string variables;  // NAME=VALUE, or NAME for one that is gone, each with a zero byte
  std::array<FileHandle, 2> output;  // stdout, stderr
};

// Waits for it. Ends the process with the agent.
Release receive(int agent) {
  const auto head = receive_release_head(agent);
  if (!head || head->size > kMostBytes) ::_exit(1);
  const std::size_t size = head->size;
  std::string block(size, '\0');
  for (std::size_t at = 0; at < size;) {
    const ssize_t got = ::recv(agent, block.data() + at, size - at, 0);
    if (got <= 0) ::_exit(1);
    at += static_cast<std::size_t>(got);
  }
  return {std::move(block), {FileHandle(head->output[0]), FileHandle(head->output[1])}};
}

// Passes on what this stream has printed so far.
void join_output(int target, const FileHandle& given) {
  std::string printed(kPrintedBytes, '\0');
  const ssize_t size = ::pread(target, printed.data(), printed.size(), 0);
  ::dup2(given.get(), target);
  if (size > 0) [[maybe_unused]]
    const auto written = ::write(target, printed.data(), static_cast<std::size_t>(size));
}

void become(int agent, const Release& release) {
  for (std::string_view rest = release.variables; !rest.empty();) {
    const std::string entry(rest.substr(0, rest.find('\0')));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    const auto equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    if (std::ranges::find(kOfAnAttempt, name) == kOfAnAttempt.end())
      refuse(agent, fmt::format("{} differs, and it may have been read before bootstrap()", name));
    // NOLINTBEGIN(concurrency-mt-unsafe): there is one thread
    if (equals == std::string::npos)
      ::unsetenv(name.c_str());
    else
      ::setenv(name.c_str(), entry.c_str() + equals + 1, 1);
    // NOLINTEND(concurrency-mt-unsafe)
  }
  std::fflush(nullptr);
  join_output(STDOUT_FILENO, release.output[0]);
  join_output(STDERR_FILENO, release.output[1]);
  if (::isatty(STDOUT_FILENO) != 0) std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
}

}  // namespace

void wait_if_standby(WorkerPage& page) {
  page.parks = static_cast<std::uint64_t>(::getpid());
  const auto agent = connection();
  if (!agent) return;
  const FileHandle closed_at_the_end(*agent);
  if (const std::string why = spoiled(); !why.empty()) refuse(*agent, why);
  if (::send(*agent, "w", 1, MSG_NOSIGNAL) != 1) ::_exit(1);
  become(*agent, receive(*agent));
  ::send(*agent, "g", 1, MSG_NOSIGNAL);
}

}  // namespace ddprun::worker
