#include "base/limit_hint.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

namespace ddprun {
namespace {

// The hard limit: ddprun raises its own soft limit of open files.
std::string now_of(__rlimit_resource resource, rlim_t unit, std::string_view named = "") {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return "unlimited now";
  return fmt::format("{}{} now", limit.rlim_max / unit, named);
}

std::string raise_memory() { return fmt::format("`ulimit -v` ({})", now_of(RLIMIT_AS, 1024)); }

// A thread's stack counts as memory, and its error is the same.
std::string threads_hint() {
  const std::string memory =
      has_memory_limit() ? fmt::format("raise the limit of memory: {}; or ", raise_memory()) : "";
  return fmt::format("{}raise the limit of processes: `ulimit -u` ({}), or pids.max of the cgroup",
                     memory, now_of(RLIMIT_NPROC, 1));
}

// ---- the end of a process that lacks something ----

// Made before: nothing can be allocated then. A handler takes no argument, so they are global.
struct Lack {
  std::array<char, 512> memory{};
  std::string called;
  std::atomic<bool>* said = nullptr;
};
Lack& lack() {
  static Lack one;
  return one;
}

[[noreturn]] void end_process(std::string_view line) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  if (lack().said == nullptr) ::_exit(1);
  *lack().said = true;
  ::kill(::getpid(), SIGKILL);
  ::_exit(1);
}

void memory_ran_out() { end_process(lack().memory.data()); }

int errno_of(const std::exception_ptr& escaped) {
  try {
    std::rethrow_exception(escaped);
  } catch (const std::system_error& error) {
    return error.code().value();
  } catch (const boost::system::system_error& error) {
    return error.code().value();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  } catch (...) {
    return 0;
  }
}

// A thread or a descriptor that could not be had, and nobody expected it.
[[noreturn]] void exception_escaped() {
  const std::exception_ptr escaped = std::current_exception();
  const int error = escaped ? errno_of(escaped) : 0;
  if (error == ENOMEM) memory_ran_out();
  if (!limit_hint(error).empty())
    end_process(fmt::format("{}: cannot go on: {}\n", lack().called, describe_errno(error)));
  std::abort();
}

}  // namespace

bool has_memory_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

std::string limit_hint(int error) {
  switch (error) {
    case EMFILE:
      return fmt::format("raise the limit of open files: `ulimit -n` ({})",
                         now_of(RLIMIT_NOFILE, 1));
    case ENFILE:
      return "raise the host's limit of open files: fs.file-max (sysctl)";
    case EAGAIN:
      return threads_hint();
    case ENOMEM:
      return fmt::format("raise the limit of memory: {}, or that of the cgroup", raise_memory());
    case ENOSPC:
      return "make room on that file system (`df -h`, and `df -i` for its files), or choose a "
             "folder on another one";
    case EDQUOT:
      return "make room in your quota of that file system, or choose a folder on another one";
    case EFBIG:
      return fmt::format("raise the limit of a file's size: `ulimit -f` ({})",
                         now_of(RLIMIT_FSIZE, 1024, " KiB"));
    default:
      return {};
  }
}

std::string describe_errno(int error) {
  const std::string hint = limit_hint(error);
  const char* text = ::strerrordesc_np(error);
  return fmt::format("{}{}{}", text == nullptr ? "unknown error" : text, hint.empty() ? "" : "; ",
                     hint);
}

void end_where_a_limit_is_hit(const std::string& called, std::atomic<bool>* said) {
  lack().called = called;
  lack().said = said;
  const std::string text = fmt::format("{}: no memory is left; {}\n", called, limit_hint(ENOMEM));
  std::copy_n(text.begin(), std::min(text.size(), lack().memory.size() - 1), lack().memory.begin());
  std::set_new_handler(memory_ran_out);
  std::set_terminate(exception_escaped);
}

}  // namespace ddprun
