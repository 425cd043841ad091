// mnist: trains on handwritten digits with as many workers as it was started with: alone, or as
//
//   ddprun --standalone --nproc-per-node=2 build/bin/mnist --checkpoint /tmp/mnist.pt
//
// Exit codes: 0 for success, 2 for a wrong command line or wrong data, 1 for what fails later.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "examples/mnist/atomic_file.h"
#include "examples/mnist/mnist_data.h"
#include "examples/mnist/options.h"
#include "examples/mnist/training.h"
#include "worker/startup/bootstrap.h"

namespace {

namespace examples = ddprun::examples;

int fail(int code, const std::string& message) {
  fmt::print(stderr, "mnist: {}\n", message);
  return code;
}

// LibTorch would start one thread per core in each worker, and the workers of a host would take the
// cores from each other. So each has one thread, unless the launcher or the user says otherwise.
void limit_threads() {
  const char* const chosen = std::getenv("OMP_NUM_THREADS");  // NOLINT(concurrency-mt-unsafe)
  if (chosen == nullptr) at::set_num_threads(1);
}

int train(const examples::Options& options) {
  auto train = examples::read_digits(options.data, "train");
  auto held_out = examples::read_digits(options.data, "t10k");
  if (!train) return fail(2, "--data: " + train.error().message());
  if (!held_out) return fail(2, "--data: " + held_out.error().message());
  // The files are read before: with a wrong --data no rank waits for the others in here.
  auto process = ddprun::worker::bootstrap();
  if (!process) return fail(1, process.error().message());
  examples::Training training(options, *process, examples::to_tensors(std::move(*train)),
                              examples::to_tensors(std::move(*held_out)));
  training.run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  auto options = examples::parse_options(std::vector<std::string>(argv + 1, argv + argc));
  if (!options) return fail(2, options.error().message());
  if (options->help) {
    fmt::print("{}", examples::help_text());
    return 0;
  }
  // A path that cannot be written is an error now, not after the first epoch.
  if (!options->checkpoint.empty()) {
    const auto writable = examples::check_replaceable(options->checkpoint);
    if (!writable) return fail(2, "--checkpoint: " + writable.error().message());
  }
  if (options->data.empty()) options->data = DDPRUN_EXAMPLES_DATA "/mnist_5k";
  try {
    limit_threads();
    return train(*options);
  } catch (const ddprun::worker::LoggedError&) {
    // One line for all ranks of the host is in the log already.
    return 1;
  } catch (const c10::Error& error) {
    return fail(1, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
}
