// The command that a worker executes: SCRIPT and its arguments go in, a file and argv come out.
// This decides between Python and a program of its own, and finds the interpreter. It puts the
// local rank into the arguments. Pure: it looks at files only through CommandFacts. It starts
// nothing and sets no environment variable. Main thread, before the agent starts.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// The kind of a file; for a regular one its first bytes decide.
enum class FileKind {
  kMissing,
  kDirectory,
  kElf,           // a binary
  kPythonScript,  // a `#!` line that names a Python
  kOtherScript,   // a `#!` line that names something else
  kPlain,         // none of these: taken as Python
};

struct FileFacts {
  FileKind kind = FileKind::kMissing;
  bool executable = false;  // by this user

  bool operator==(const FileFacts&) const = default;
};

// The kind of a regular file that begins with `head`. Its first 256 bytes are enough.
FileKind kind_of_head(std::string_view head);

// Returns whether SCRIPT needs no Python: its first bytes say what it is. A name that ends in .py
// is Python, as with torchrun. Its `#!` line does not matter (`env -S uv run --script`).
bool runs_itself(std::string_view script, FileKind kind);

// A Python of this machine.
struct PythonPlace {
  std::string path;
  std::string found_by;    // what led to it, for people: "VIRTUAL_ENV"
  bool has_torch = false;  // as far as folders tell: no Python is started for it
  bool is_active = false;  // of the environment that the user has activated, not by PATH alone
  // An installer made its environment for one tool alone, ddprun: pipx, uv tool, uvx.
  bool is_of_a_tool = false;

  bool operator==(const PythonPlace&) const = default;
};

// The questions of build_command() about this machine.
struct CommandFacts {
  std::function<FileFacts(const std::string& path)> inspect;
  // The path that execvp(3) would take for a name without a slash. Nothing if there is none.
  std::function<std::optional<std::string>(const std::string& name)> find_on_path;
  std::optional<std::string> python_exec{};  // $PYTHON_EXEC
  // python3 in the folder that ddprun lies in, if that is the bin folder of a virtual environment.
  std::function<std::optional<PythonPlace>()> python_beside_us;
  // The user's: those of VIRTUAL_ENV and CONDA_PREFIX, then python3 on PATH. Each only once, if it
  // is there and is not the one beside us.
  std::function<std::vector<PythonPlace>()> pythons{};
};

// The command of one node's workers. The agent's WorkerProgram is made from it.
struct Command {
  std::string file;                 // path to execute; has a slash
  std::vector<std::string> head;    // argv[0] and what stands before the script's own arguments
  std::vector<std::string> args{};  // the script's arguments as given
  std::string entry;                // what the failure report calls it, as torchrun does
  std::string numactl{};            // path of numactl if workers are bound to CPUs; else empty
  std::vector<std::string> cpus{};  // with numactl: one list of CPUs for each local rank, "0-3,8"
  bool needs_pci_order = false;     // workers must number their GPUs by PCI address

  bool runs_python = false;  // `file` is a Python that we have chosen

  // The path to execute: `file`, or numactl if workers are bound.
  const std::string& program() const { return numactl.empty() ? file : numactl; }
  // The whole argv of one worker. In `args`, `$local_rank` and `${local_rank}` become the number.
  // Other names and `$$` stay.
  std::vector<std::string> argv(int local_rank) const;

  bool operator==(const Command&) const = default;
};

// The interpreter of workers. The order is $PYTHON_EXEC, the python3 of our own virtual
// environment, python3 on PATH. But an environment of our own without torch gives way. One that was
// made for ddprun alone gives way to the user's first Python. Any other gives way to an environment
// that is active and has torch. If $PYTHON_EXEC is wrong it is an error, and no other Python is
// tried: the user would not notice it.
Result<std::string> find_python(const CommandFacts& facts);

// A hint for a worker that found no torch. It says which Pythons were looked at, which was taken,
// and what to type. One clause.
std::string torch_advice(const CommandFacts& facts);

// The command that `options` asks for. A missing file, or a program that is not executable, is
// found here, before any worker starts. Errors are one clause without `ddprun: ` in front: print it
// and exit with 1.
Result<Command> build_command(const Options& options, const CommandFacts& facts);

// --numa-binding: puts numactl in front of each worker's command. Call it only if
// options.numa_binding is set. GPUs of unlike models need PCI order: a worker's CPUs are near the
// GPU of that number. Errors as above: numactl is not on PATH, or those of plan_numa().
Result<Command> bind_to_cpus(Command command, const Options& options, const NumaFacts& numa,
                             const CommandFacts& facts);

}  // namespace ddprun::launcher
