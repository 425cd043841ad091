#include "launcher/job/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/number_ranges.h"

namespace ddprun::launcher {
namespace {

// The program of --run-path: it runs SCRIPT by runpy in a fresh interpreter. As with torchrun, an
// error of the script is recorded. That needs torch; without torch the script runs all the same.
constexpr std::string_view kRunPathProgram =
    "import runpy, sys\n"
    "try:\n"
    "    from torch.distributed.elastic.multiprocessing.errors import record\n"
    "except ImportError:\n"
    "    record = lambda function: function\n"
    "sys.argv = sys.argv[1:]\n"
    "record(runpy.run_path)(sys.argv[0], run_name='__main__')\n";

Error bad(std::string_view what, std::string_view why) {
  return {ErrorCode::kInvalidArgument, fmt::format("{}: {}", what, why)};
}

Error missing(std::string_view what, std::string_view why) {
  return {ErrorCode::kNotFound, fmt::format("{}: {}", what, why)};
}

bool has_slash(std::string_view text) { return text.find('/') != std::string_view::npos; }

// A file of the current folder gets `./`. execve(2) would take the plain name too, but numactl
// looks a name without a slash up on PATH (execvp(3)).
std::string with_slash(const std::string& path) { return has_slash(path) ? path : "./" + path; }

bool is_python_name(std::string_view word) {
  word.remove_prefix(word.find_last_of('/') + 1);  // npos + 1 is 0
  return word.starts_with("python") || word.starts_with("pypy");
}

// Looks at every word of the `#!` line: in `#!/usr/bin/env -S python3 -u` Python is the third.
bool names_python(std::string_view line) {
  while (!line.empty()) {
    const auto end = std::min(line.find_first_of(" \t"), line.size());
    if (is_python_name(line.substr(0, end))) return true;
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return false;
}

// Nothing if the file can be executed. Without this check each worker would fail by itself.
std::optional<Error> check_executable(const std::string& path, const FileFacts& found) {
  if (found.kind == FileKind::kMissing) return missing(path, "no such file");
  if (found.kind == FileKind::kDirectory) return bad(path, "is a directory, expected a program");
  if (!found.executable) return bad(path, "is not executable");
  return std::nullopt;
}

// As torch.distributed.launch does, puts the local rank before the script's own arguments. argv()
// fills in the number.
std::vector<std::string> script_arguments(const Options& options) {
  std::vector<std::string> args = options.script_args;
  if (options.local_rank_argument) args.insert(args.begin(), "--local-rank=${local_rank}");
  return args;
}

// A worker that is SCRIPT itself; argv[0] is the word that the user wrote.
Command program(const Options& options, std::string file) {
  return {.file = std::move(file),
          .head = {options.script},
          .args = script_arguments(options),
          .entry = options.script};
}

// --no-python: as execvp(3), takes PATH only for a name without a slash.
Result<Command> program_by_name(const Options& options, const CommandFacts& facts) {
  if (!has_slash(options.script)) {
    auto path = facts.find_on_path(options.script);
    if (!path) return missing(options.script, "no such program on PATH");
    return program(options, *std::move(path));
  }
  if (auto error = check_executable(options.script, facts.inspect(options.script))) return *error;
  return program(options, options.script);
}

// The one beside us, unless it gives way (find_python() in the header).
std::optional<std::string> python_of_environments(const CommandFacts& facts) {
  const auto own = facts.python_beside_us();
  if (!own || own->has_torch || !facts.pythons)
    return own ? std::optional(own->path) : std::nullopt;
  for (const PythonPlace& other : facts.pythons()) {
    if (own->is_of_a_tool || (other.has_torch && other.is_active)) return other.path;
  }
  return own->path;
}

// `-u` as torchrun: without it a worker that is killed takes its last lines with it.
Result<Command> python_command(const Options& options, const CommandFacts& facts) {
  const auto python = find_python(facts);
  if (!python) return python.error();
  Command command{.file = *python,
                  .head = {*python, "-u"},
                  .args = script_arguments(options),
                  .entry = options.script,
                  .runs_python = true};
  // The report names what torchrun's names: with $PYTHON_EXEC the interpreter, with --run-path
  // torchrun's own function (_get_entrypoint_name() in torch/distributed/launcher/api.py).
  if (facts.python_exec && !facts.python_exec->empty()) command.entry = *facts.python_exec;
  if (options.mode == Mode::kModule) command.head.emplace_back("-m");
  if (options.mode == Mode::kRunPath) {
    command.head.insert(command.head.end(), {"-c", std::string(kRunPathProgram)});
    command.entry = "run_script_path";
  }
  command.head.push_back(options.script);
  return command;
}

// A name without a slash is a file of the current folder, never a program on PATH. If it exists
// only there, the error says so.
Result<Command> script_command(const Options& options, const CommandFacts& facts) {
  const FileFacts found = facts.inspect(options.script);
  if (found.kind == FileKind::kMissing) {
    const bool on_path = !has_slash(options.script) && facts.find_on_path(options.script);
    return missing(options.script, on_path
                                       ? "no such file; --no-python would run the program on PATH"
                                       : "no such file");
  }
  if (options.mode == Mode::kRunPath || !runs_itself(options.script, found.kind)) {
    return python_command(options, facts);
  }
  if (auto error = check_executable(options.script, found)) return *error;
  return program(options, with_slash(options.script));
}

bool is_name_start(char c) { return c == '_' || std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_name_part(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; }

// The name in a `$name` or `${name}` at the front of a text, and how many characters it takes.
// An empty name if there is no macro. The `$` stands for itself then.
struct Macro {
  std::string_view name;
  std::size_t length = 1;
};

Macro macro_at(std::string_view text) {
  const std::size_t from = text.starts_with("${") ? 2 : 1;
  if (from >= text.size() || !is_name_start(text[from])) return {};
  std::size_t to = from;
  while (to < text.size() && is_name_part(text[to])) ++to;
  const auto name = text.substr(from, to - from);
  if (from == 1) return {name, to};
  return to < text.size() && text[to] == '}' ? Macro{name, to + 1} : Macro{};
}

// torchrun's substitution (string.Template) with its one name. One difference: `$$` stays as it is.
// torchrun turns it into `$`, which breaks `sh -c 'kill $$'`. As there, `$$local_rank` is no macro.
std::string substitute(std::string_view text, int local_rank) {
  std::string result;
  while (!text.empty()) {
    std::size_t taken = 1;
    if (text.starts_with("$$")) {
      taken = 2;
    } else if (text.front() == '$') {
      const Macro macro = macro_at(text);
      taken = macro.length;
      if (macro.name == "local_rank") {
        result += std::to_string(local_rank);
        text.remove_prefix(taken);
        continue;
      }
    }
    result += text.substr(0, taken);
    text.remove_prefix(taken);
  }
  return result;
}

}  // namespace

Result<std::string> find_python(const CommandFacts& facts) {
  if (!facts.python_exec || facts.python_exec->empty()) {
    if (auto path = python_of_environments(facts)) return *std::move(path);
    if (auto path = facts.find_on_path("python3")) return *std::move(path);
    return missing("python3", "no such program on PATH; PYTHON_EXEC names another");
  }
  const std::string& python = *facts.python_exec;
  const auto shown = fmt::format("PYTHON_EXEC={}", python);
  if (!has_slash(python)) {
    if (auto path = facts.find_on_path(python)) return *std::move(path);
    return missing(shown, "no such program on PATH");
  }
  const FileFacts found = facts.inspect(python);
  if (found.kind == FileKind::kMissing) return missing(shown, "no such file");
  if (found.kind == FileKind::kDirectory || !found.executable)
    return bad(shown, "is not executable");
  return python;
}

std::string torch_advice(const CommandFacts& facts) {
  const auto taken = find_python(facts);
  if (!taken) return taken.error().message();
  const bool is_said = facts.python_exec && !facts.python_exec->empty();
  std::string text = fmt::format("workers run with {}{}, which has no torch", *taken,
                                 is_said ? " (PYTHON_EXEC)" : "");
  std::vector<PythonPlace> others = facts.pythons ? facts.pythons() : std::vector<PythonPlace>();
  if (const auto own = facts.python_beside_us()) others.insert(others.begin(), *own);
  std::erase_if(others, [&](const PythonPlace& other) { return other.path == *taken; });
  std::string looked_at;
  std::string better = "/PATH/TO/python3";
  for (auto other = others.rbegin(); other != others.rend(); ++other) {
    looked_at += fmt::format("{}{} ({}{})", looked_at.empty() ? "" : ", ", other->path,
                             other->found_by, other->has_torch ? ", has torch" : ", no torch");
    if (other->has_torch) better = other->path;
  }
  if (!looked_at.empty()) text += "; also here: " + looked_at;
  return text + fmt::format(
                    "; type `PYTHON_EXEC={} ddprun …`, or activate the environment that has "
                    "torch and install ddprun into it",
                    better);
}

FileKind kind_of_head(std::string_view head) {
  // Two literals: in one, `\x7fE` would be a single escape, since E is a hexadecimal digit.
  if (head.starts_with("\x7f"
                       "ELF")) {
    return FileKind::kElf;
  }
  if (!head.starts_with("#!")) return FileKind::kPlain;
  const auto line = head.substr(2, head.find('\n') - 2);
  return names_python(line) ? FileKind::kPythonScript : FileKind::kOtherScript;
}

bool runs_itself(std::string_view script, FileKind kind) {
  if (script.ends_with(".py")) return false;
  return kind == FileKind::kElf || kind == FileKind::kOtherScript;
}

std::vector<std::string> Command::argv(int local_rank) const {
  std::vector<std::string> words = head;
  if (!numactl.empty()) {
    // numactl looks up its program by argv[0], so that must be the path found here.
    words[0] = file;
    const auto& own_cpus = cpus.at(static_cast<std::size_t>(local_rank));
    words.insert(words.begin(), {"numactl", "--physcpubind=" + own_cpus});
  }
  for (const std::string& arg : args) words.push_back(substitute(arg, local_rank));
  return words;
}

Result<Command> build_command(const Options& options, const CommandFacts& facts) {
  switch (options.mode) {
    case Mode::kProgram:
      return program_by_name(options, facts);
    case Mode::kModule:
      return python_command(options, facts);
    case Mode::kScript:
    case Mode::kRunPath:
      return script_command(options, facts);
  }
  return bad(options.script, "no such mode");
}

Result<Command> bind_to_cpus(Command command, const Options& options, const NumaFacts& numa,
                             const CommandFacts& facts) {
  constexpr std::string_view flag = "--numa-binding";
  auto numactl = facts.find_on_path("numactl");
  if (!numactl) return missing(flag, "needs the program numactl, which is not on PATH");
  const auto plan =
      plan_numa(options.numa_binding.value_or(NumaMode::kNode), numa, options.workers_per_node);
  if (!plan) return missing(flag, plan.error().message());
  command.numactl = *std::move(numactl);
  command.needs_pci_order = !numa.gpus_are_alike;
  for (const auto& cpus : *plan) command.cpus.push_back(number_ranges(cpus));
  return command;
}

}  // namespace ddprun::launcher
