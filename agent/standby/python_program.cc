#include "agent/standby/python_program.h"

#include <string_view>

namespace ddprun::agent {
namespace {

// python, python3, python3.12, python3.13t; pypy has no sitecustomize that we have tried.
bool is_python(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  constexpr std::string_view kName = "python";
  return name.starts_with(kName) &&
         name.substr(kName.size()).find_first_not_of("0123456789.t") == std::string_view::npos;
}

// The meaning of one argument of short options, such as "-uX", for those behind it.
enum class Options { kMoreFollow, kValueFollows, kModuleFollows, kCodeFollows, kNoHook };

Options read_options(std::string_view option) {
  for (std::size_t at = 1; at < option.size(); ++at) {
    const char letter = option[at];
    if (letter == 'E' || letter == 'I' || letter == 'S') return Options::kNoHook;
    if (letter == 'm') return Options::kModuleFollows;
    if (letter == 'c') return Options::kCodeFollows;
    if (letter == 'W' || letter == 'X')
      return at + 1 == option.size() ? Options::kValueFollows : Options::kMoreFollow;
  }
  return Options::kMoreFollow;
}

// The end of the options. `options` is kNoHook, kModuleFollows or kCodeFollows, or kMoreFollow
// before a script. `at`: the next argument.
struct OptionsEnd {
  Options options = Options::kMoreFollow;
  std::size_t at = 1;
};

OptionsEnd end_of_options(const std::vector<std::string>& argv) {
  std::size_t at = 1;
  for (; at < argv.size(); ++at) {
    const std::string_view option = argv[at];
    // The first that is no option is the script. Long options say nothing about paths.
    if (option.size() < 2 || option[0] != '-') break;
    if (option[1] == '-') continue;
    const Options said = read_options(option);
    if (said == Options::kValueFollows) ++at;
    if (said != Options::kValueFollows && said != Options::kMoreFollow) return {said, at + 1};
  }
  return {Options::kMoreFollow, at};
}

}  // namespace

bool takes_hook(const WorkerProgram& program) {
  return is_python(program.file) && end_of_options(program.argv).options != Options::kNoHook;
}

std::optional<PythonScript> script_of(const WorkerProgram& program) {
  if (!takes_hook(program)) return std::nullopt;
  const OptionsEnd end = end_of_options(program.argv);
  if (end.options == Options::kCodeFollows || end.at >= program.argv.size() ||
      program.argv[end.at] == "-")
    return std::nullopt;
  return PythonScript{program.argv[end.at], end.options == Options::kModuleFollows};
}

}  // namespace ddprun::agent
