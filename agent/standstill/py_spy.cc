#include "agent/standstill/py_spy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <utility>
#include <vector>

#include "agent/processes/process.h"
#include "base/environment.h"
#include "base/numbers.h"
#include "base/regular_file.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMostSpiedFrames = 64;

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// A file of Python or of a package.
bool is_shared(std::string_view file) {
  return file.starts_with('<') || file.find("/site-packages/") != std::string_view::npos ||
         file.find("/dist-packages/") != std::string_view::npos ||
         file.find("/lib/python3") != std::string_view::npos;
}

// "    train (/home/me/hang.py:18)"
std::optional<WitnessFrame> parse_spied_frame(std::string_view line) {
  constexpr std::string_view kIndent = "    ";
  const std::size_t place = line.find(" (");
  const std::size_t colon = line.rfind(':');
  if (!line.starts_with(kIndent) || place == std::string_view::npos || colon < place ||
      colon == std::string_view::npos)
    return std::nullopt;
  const auto cut = [](std::string_view text) {
    return std::string(text.substr(0, rendezvous::kMostEvidenceText));
  };
  WitnessFrame frame;
  frame.function = cut(line.substr(kIndent.size(), place - kIndent.size()));
  frame.file = cut(line.substr(place + 2, colon - place - 2));
  frame.line = leading_number<int>(line.substr(colon + 1)).value_or(0);
  frame.is_own = !is_shared(frame.file);
  return frame;
}

// The function in which it waits for other ranks: the outermost one of torch.distributed. The
// backward pass of DDP waits without one.
std::string inside(const std::vector<WitnessFrame>& stack) {
  for (auto frame = stack.rbegin(); frame != stack.rend(); ++frame)
    if (frame->file.ends_with("torch/distributed/distributed_c10d.py")) return frame->function;
  return stack.front().function == "_engine_run_backward" ? "backward" : "";
}

bool is_executable(const std::string& path) { return ::access(path.c_str(), X_OK) == 0; }

// Returns whether all user ids of a process are this one's. A worker of another user may not choose
// a program that runs as this one.
bool is_same_user(pid_t worker) {
  const std::string status = read_proc_file(worker, "status");
  const std::string mine = std::to_string(::geteuid());
  return status.find(fmt::format("\nUid:\t{0}\t{0}\t{0}\t{0}\n", mine)) != std::string::npos;
}

}  // namespace

std::string find_py_spy(pid_t worker) {
  constexpr std::string_view kName = "/py-spy";
  const std::string command = read_proc_file(worker, "cmdline");
  const std::string interpreter = command.substr(0, command.find('\0'));
  if (!file_name(interpreter).starts_with("python") || !is_same_user(worker)) return {};
  const std::size_t folder = interpreter.rfind('/');
  if (interpreter.starts_with('/')) {
    std::string beside = interpreter.substr(0, folder).append(kName);
    if (is_executable(beside)) return beside;
  }
  std::string path = process_environment()("PATH").value_or("");
  while (!path.empty()) {
    const std::size_t end = path.find(':');
    std::string on_path = path.substr(0, end).append(kName);
    if (on_path.starts_with('/') && is_executable(on_path)) return on_path;
    path.erase(0, end == std::string::npos ? path.size() : end + 1);
  }
  return {};
}

PySpy::PySpy(const std::string& program, pid_t worker, std::string file)
    : worker_(worker), file_(std::move(file)) {
  constexpr int kOwnAlone = 0600;
  std::string pid = std::to_string(worker);
  std::array<std::string, 5> words{program, "dump", "--nonblocking", "--full-filenames", "--pid"};
  std::vector<char*> argv;
  argv.reserve(words.size() + 2);
  for (std::string& word : words) argv.push_back(word.data());
  argv.insert(argv.end(), {pid.data(), nullptr});
  std::array<char*, 1> no_variables{nullptr};
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, file_.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, kOwnAlone);
  ::posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t settings;
  ::posix_spawnattr_init(&settings);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&settings, &none);
  ::posix_spawnattr_setflags(&settings, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  if (::posix_spawn(&child, program.c_str(), &files, &settings, argv.data(), no_variables.data()) ==
      0)
    process_ = FileHandle(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  ::posix_spawnattr_destroy(&settings);
  ::posix_spawn_file_actions_destroy(&files);
}

PySpy::~PySpy() {
  if (process_.get() >= 0) ::syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0);
}

bool PySpy::has_ended() const {
  pollfd ended{.fd = process_.get(), .events = POLLIN, .revents = 0};
  return process_.get() < 0 || ::poll(&ended, 1, 0) == 1;
}

std::optional<WitnessAnswer> PySpy::answer() const {
  if (!has_ended()) return std::nullopt;
  return parse_py_spy(read_file_start(file_, kMostAnswerBytes), worker_);
}

// The command line of the worker comes before, and may have any lines. The threads come last.
std::optional<WitnessAnswer> parse_py_spy(std::string_view text, pid_t worker) {
  const std::size_t thread = text.rfind(fmt::format("\nThread {} (", worker));
  if (thread == std::string_view::npos) return std::nullopt;
  text.remove_prefix(thread + 1);
  WitnessAnswer answer;
  while (answer.stack.size() < kMostSpiedFrames) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
    const auto frame = parse_spied_frame(text.substr(0, text.find('\n')));
    if (!frame) break;
    answer.stack.push_back(*frame);
  }
  if (answer.stack.empty()) return std::nullopt;
  answer.inside = inside(answer.stack);
  return answer;
}

}  // namespace ddprun::agent
