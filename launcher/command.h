// What a worker executes: SCRIPT and its arguments in, argv out. Decides between Python and a
// program of its own, finds the interpreter, and puts the local rank into the arguments. Pure:
// looks at files only through CommandFacts. It does not start anything and does not set environment
// variables.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options.h"
#include "proto/result.h"

namespace ddprun::launcher {

// What the first bytes of a path say.
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

// The kind of a regular file that starts with `head` (its first 256 bytes are enough).
FileKind kind_of_head(std::string_view head);

// What build_command() asks about this host.
struct CommandFacts {
  std::function<FileFacts(const std::string& path)> inspect;
  // The path execvp would take for a name without slash, or nothing.
  std::function<std::optional<std::string>(const std::string& name)> find_on_path;
  std::optional<std::string> python_exec{};  // $PYTHON_EXEC
  // python3 in ddprun's own folder, where that is a virtual environment's bin.
  std::optional<std::string> python_beside_us{};
};

// One node's worker command.
struct Command {
  std::string file;                 // path to execute; has a slash
  std::vector<std::string> head;    // argv[0] and what stands before the script's own arguments
  std::vector<std::string> args{};  // the script's arguments as given
  std::string entry;                // how the failure report names it, as torchrun does
  std::string numactl{};            // its path, where workers are bound to CPUs; else empty
  std::vector<std::string> cpus{};  // then: for each local rank, as numactl takes them

  // The path to execute: `file`, or numactl where workers are bound.
  const std::string& program() const { return numactl.empty() ? file : numactl; }
  // The whole argv of one worker: in `args`, `$local_rank` and `${local_rank}` become the number;
  // other names and `$$` stay.
  std::vector<std::string> argv(int local_rank) const;

  bool operator==(const Command&) const = default;
};

// Errors are one clause without `ddprun: ` in front; the launcher exits with 1. A missing file or
// one that must be executable and is not is found here, before any worker starts.
Result<Command> build_command(const Options& options, const CommandFacts& facts);

// --numa-binding: the command with numactl in front of it for each worker. Errors as above: numactl
// is not on PATH, or plan_numa()'s.
Result<Command> bind_to_cpus(Command command, const Options& options, const NumaFacts& numa,
                             const CommandFacts& facts);

}  // namespace ddprun::launcher
