// What a worker executes: SCRIPT and its arguments go in, a file and argv come out. This decides
// between Python and a program of its own, finds the interpreter, and puts the local rank into the
// arguments. Pure: it looks at files only through CommandFacts. It starts nothing and sets no
// environment variable. Main thread, before the agent starts.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options.h"
#include "proto/result.h"

namespace ddprun::launcher {

// What lies at a path; for a regular file its first bytes decide.
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

// Whether SCRIPT needs no Python: its first bytes say what it is. A name that ends in .py is Python
// whatever its `#!` line says (`env -S uv run --script`), as with torchrun.
bool runs_itself(std::string_view script, FileKind kind);

// What build_command() asks about this machine.
struct CommandFacts {
  std::function<FileFacts(const std::string& path)> inspect;
  // The path that execvp(3) would take for a name without a slash. Nothing: there is none.
  std::function<std::optional<std::string>(const std::string& name)> find_on_path;
  std::optional<std::string> python_exec{};  // $PYTHON_EXEC
  // python3 in the folder that ddprun lies in, if that is the bin folder of a virtual environment.
  std::function<std::optional<std::string>()> python_beside_us;
};

// The command of one node's workers. The agent's WorkerProgram is made from it.
struct Command {
  std::string file;                 // path to execute; has a slash
  std::vector<std::string> head;    // argv[0] and what stands before the script's own arguments
  std::vector<std::string> args{};  // the script's arguments as given
  std::string entry;                // what the failure report calls it, as torchrun does
  std::string numactl{};            // path of numactl if workers are bound to CPUs; else empty
  std::vector<std::string> cpus{};  // with numactl: one list of CPUs for each local rank, "0-3,8"

  // The path to execute: `file`, or numactl if workers are bound.
  const std::string& program() const { return numactl.empty() ? file : numactl; }
  // The whole argv of one worker. In `args`, `$local_rank` and `${local_rank}` become the number.
  // Other names and `$$` stay.
  std::vector<std::string> argv(int local_rank) const;

  bool operator==(const Command&) const = default;
};

// The command that `options` asks for. A missing file, or a program that is not executable, is
// found here, before any worker starts. Errors are one clause without `ddprun: ` in front: print it
// and exit with 1.
Result<Command> build_command(const Options& options, const CommandFacts& facts);

// --numa-binding: puts numactl in front of each worker's command. Call it only if
// options.numa_binding is set. Errors as above: numactl is not on PATH, or those of plan_numa().
Result<Command> bind_to_cpus(Command command, const Options& options, const NumaFacts& numa,
                             const CommandFacts& facts);

}  // namespace ddprun::launcher
