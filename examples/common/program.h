// The common parts of the examples beside their idea: a command line, a start, one line for an
// error, reports. Main thread.
#pragma once

#include <ddprun/process.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "examples/common/flags.h"

namespace ddprun::examples {

// A command line, data or file that is wrong: exit code 2.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads what a flag names. An error becomes a UsageError with the flag that led to it.
template <typename Read>
auto value_of(std::string_view flag, Read read) {
  try {
    return read();
  } catch (const std::runtime_error& error) {
    throw UsageError(std::string(flag) + ": " + error.what());
  }
}

// main() of an example. Parses. Calls `load` before it meets the others, so that with wrong data no
// rank waits for them in vain. Then calls `train`. Exit codes: 0 for success, 2 for a wrong command
// line or wrong data, 1 for what fails later.
int run_program(std::string_view name, Flags& flags, int argc, char** argv,
                const std::function<void()>& load, const std::function<void(Process&)>& train);

// The same for an example that trains. It takes the flag --device, which says whether the ranks
// meet with their GPUs or with their CPUs. `cuda` without a GPU is a wrong command line. The
// collective's device() says which of them they met with.
int run_training(std::string_view name, Flags& flags, int argc, char** argv,
                 const std::function<void()>& load, const std::function<void(Process&)>& train);

// A line of rank 0 on stdout, at once. Other ranks say nothing.
void say(const Process& process, std::string_view text);

}  // namespace ddprun::examples
