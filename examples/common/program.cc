#include "examples/common/program.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <ddprun/process.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddprun::examples {
namespace {

// LibTorch would start one thread per core in each worker. The workers of a host would take the
// cores from each other. So each has one thread, unless the launcher or the user says otherwise.
void limit_threads() {
  const char* const chosen = std::getenv("OMP_NUM_THREADS");  // NOLINT(concurrency-mt-unsafe)
  if (chosen == nullptr) at::set_num_threads(1);
}

int fail(std::string_view name, int code, std::string_view message) {
  fmt::print(stderr, "{}: {}\n", name, message);
  return code;
}

// Reads --device.
BootstrapOptions options_of(const std::string& device) {
  if (device == "cpu") return {};
  return {.device = Device::kCuda, .cpu_instead = device == "auto"};
}

void meet_and_train(const std::string& device, const std::function<void(Process&)>& train) {
  const std::string why = device == "cuda" ? why_no_gpu() : "";
  if (!why.empty())
    throw UsageError(
        fmt::format("--device: 'cuda' given, expected auto or cpu on this machine: {}", why));
  Process process = bootstrap(options_of(device));
  train(process);
}

// Parses, and then does `work`. The exit code.
int run(std::string_view name, Flags& flags, const std::vector<std::string>& arguments,
        const std::function<void()>& work) {
  const auto taken = flags.parse(arguments);
  if (!taken) return fail(name, 2, taken.error().message());
  if (flags.asks_for_help()) {
    fmt::print("{}", flags.help_text());
    return 0;
  }
  try {
    limit_threads();
    work();
    return 0;
  } catch (const UsageError& error) {
    return fail(name, 2, error.what());
  } catch (const LoggedError&) {
    // One line for all ranks of the host is in the log already.
    return 1;
  } catch (const c10::Error& error) {
    return fail(name, 1, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(name, 1, error.what());
  }
}

}  // namespace

int run_program(std::string_view name, Flags& flags, int argc, char** argv,
                const std::function<void()>& load, const std::function<void(Process&)>& train) {
  return run(name, flags, {argv + 1, argv + argc}, [&] {
    load();
    meet_and_train("cpu", train);
  });
}

int run_training(std::string_view name, Flags& flags, int argc, char** argv,
                 const std::function<void()>& load, const std::function<void(Process&)>& train) {
  std::string device = "auto";
  flags.word("--device", device, {"auto", "cpu", "cuda"},
             "where a worker trains: on its GPU, if there is one for each; cpu; cuda (auto)");
  return run(name, flags, {argv + 1, argv + argc}, [&] {
    load();
    meet_and_train(device, train);
  });
}

void say(const Process& process, std::string_view text) {
  if (process.collective->rank() != 0) return;
  // stdout may be a pipe, which is not flushed at the end of a line.
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

}  // namespace ddprun::examples
