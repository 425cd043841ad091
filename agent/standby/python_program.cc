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
enum class Options { kMoreFollow, kValueFollows, kProgramFollows, kNoHook };

Options read_options(std::string_view option) {
  for (std::size_t at = 1; at < option.size(); ++at) {
    const char letter = option[at];
    if (letter == 'E' || letter == 'I' || letter == 'S') return Options::kNoHook;
    if (letter == 'm' || letter == 'c') return Options::kProgramFollows;
    if (letter == 'W' || letter == 'X')
      return at + 1 == option.size() ? Options::kValueFollows : Options::kMoreFollow;
  }
  return Options::kMoreFollow;
}

}  // namespace

bool takes_hook(const WorkerProgram& program) {
  if (!is_python(program.file)) return false;
  for (std::size_t i = 1; i < program.argv.size(); ++i) {
    const std::string_view option = program.argv[i];
    // The first that is no option is the script. Long options say nothing about paths.
    if (option.size() < 2 || option[0] != '-') return true;
    if (option[1] == '-') continue;
    const Options said = read_options(option);
    if (said == Options::kNoHook) return false;
    if (said == Options::kProgramFollows) return true;
    if (said == Options::kValueFollows) ++i;
  }
  return true;
}

}  // namespace ddprun::agent
