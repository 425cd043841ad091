#include "launcher/options/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace ddprun::launcher {
namespace {

// The column where the explanations of --help begin.
constexpr std::size_t kLeftColumns = 38;

std::string left_column(const Flag& flag) {
  std::string left = flag.letter != 0 ? fmt::format("  -{}, ", flag.letter) : "      ";
  left += fmt::format("--{}", flag.name);
  if (flag.kind == FlagKind::kValue) left += fmt::format("={}", flag.metavar);
  return left;
}

// A flag that is too long for its column has its explanation on the next line. Switches have no
// default worth telling.
std::string help_line(const Flag& flag) {
  std::string left = left_column(flag);
  if (left.size() >= kLeftColumns) left += "\n";
  const std::string_view margin =
      left.ends_with('\n') ? "                                      " : "";
  const bool tell = flag.kind == FlagKind::kValue && !flag.standard.empty();
  return fmt::format("{:<38}{}{}{}\n", left, margin, flag.help,
                     tell ? fmt::format(" [{}]", flag.standard) : "");
}

std::string help_lines(FlagOwner owner) {
  std::string text;
  for (const Flag& flag : flag_table()) {
    if (flag.owner == owner) text += help_line(flag);
  }
  return text;
}

// Returns whether a word of a metavar is a value as it stands (`spawn`); capitals stand for any
// text (`DIR`).
bool is_typed(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return c == '-' || std::islower(c) != 0 || std::isdigit(c) != 0;
  });
}

bool names_files(const Flag& flag) { return flag.metavar == "FILE" || flag.metavar == "DIR"; }

// `--name` of every flag for which `wanted` is true, and `-x` if it has a letter.
template <typename Predicate>
std::vector<std::string> option_words(Predicate wanted) {
  std::vector<std::string> words;
  for (const Flag& flag : flag_table()) {
    if (!wanted(flag)) continue;
    words.push_back(fmt::format("--{}", flag.name));
    if (flag.letter != 0) words.push_back(fmt::format("-{}", flag.letter));
  }
  return words;
}

std::vector<std::string> all_options() {
  return option_words([](const Flag&) { return true; });
}

// Bash makes `=` a word of its own (COMP_WORDBREAKS), so `--tee=3` is three words here. Words
// behind SCRIPT are completed as files: the function then finds nothing, and `-o default` takes
// over. Braces are doubled, because fmt reads this text as a format.
constexpr std::string_view kBash =
    R"(# bash completion for ddprun; load it by: source <(ddprun --print-completion=bash)
_ddprun() {{
  local takes_value=" {takes_value} " at=1 word=${{COMP_WORDS[COMP_CWORD]}} flag
  COMPREPLY=()
  while ((at < COMP_CWORD)); do
    flag=${{COMP_WORDS[at]}}
    if [[ $flag != -* ]]; then return; fi
    if [[ ${{COMP_WORDS[at + 1]}} == "=" ]]; then ((at += 3))
    elif [[ $takes_value == *" $flag "* ]]; then ((at += 2))
    else ((at += 1)); fi
  done
  if ((at == COMP_CWORD)); then
    if [[ $word == -* ]]; then COMPREPLY=($(compgen -W "{options}" -- "$word")); fi
    return
  fi
  if [[ $word == "=" ]]; then word=""; fi
  case $flag in
{values}  esac
}}
complete -o default -F _ddprun ddprun ddprun-launch
)";

std::string bash_script() {
  std::string values;
  for (const Flag& flag : flag_table()) {
    const auto words = value_words(flag);
    if (words.empty()) continue;
    values += fmt::format("    --{}) COMPREPLY=($(compgen -W \"{}\" -- \"$word\")) ;;\n", flag.name,
                          fmt::join(words, " "));
  }
  const auto takes_value =
      option_words([](const Flag& flag) { return flag.kind == FlagKind::kValue; });
  return fmt::format(fmt::runtime(kBash), fmt::arg("takes_value", fmt::join(takes_value, " ")),
                     fmt::arg("options", fmt::join(all_options(), " ")),
                     fmt::arg("values", values));
}

// Text as it must stand inside single quotes, inside brackets, and between the colons of
// _arguments.
std::string zsh_text(std::string_view text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '\'') {
      quoted += R"('\'')";
      continue;
    }
    if (c == '[' || c == ']' || c == ':' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted;
}

// Returns the values that zsh offers: the words, files, or nothing.
std::string zsh_action(const Flag& flag) {
  const auto words = value_words(flag);
  if (!words.empty()) return fmt::format("({})", fmt::join(words, " "));
  return names_files(flag) ? "_files" : "";
}

// The `=` of a long option and the `+` of a letter are for _arguments. They tell that the value may
// be part of the same word.
std::string zsh_line(const Flag& flag) {
  const bool value = flag.kind == FlagKind::kValue;
  const std::string tail =
      fmt::format("[{}]{}", zsh_text(flag.help),
                  value ? fmt::format(":{}:{}", zsh_text(flag.metavar), zsh_action(flag)) : "");
  std::string lines = fmt::format("  '--{}{}{}' \\\n", flag.name, value ? "=" : "", tail);
  if (flag.letter != 0)
    lines += fmt::format("  '-{}{}{}' \\\n", flag.letter, value ? "+" : "", tail);
  return lines;
}

std::string zsh_script() {
  std::string lines;
  for (const Flag& flag : flag_table()) lines += zsh_line(flag);
  return "#compdef ddprun ddprun-launch\n"
         "# zsh completion for ddprun; load it by: source <(ddprun --print-completion=zsh)\n"
         "_ddprun() {\n_arguments -s \\\n" +
         lines +
         "  '1:SCRIPT:_files' '*::argument:_files'\n}\n"
         // In a folder of fpath the file is itself the function, when it is first called.
         "if [[ $funcstack[1] == _ddprun ]]; then _ddprun \"$@\"\n"
         "else compdef _ddprun ddprun ddprun-launch; fi\n";
}

// Options are offered up to SCRIPT. Words behind it are completed as files.
constexpr std::string_view kFish =
    R"(# fish completion for ddprun; load it by: ddprun --print-completion=fish | source
function __ddprun_before_script
  set -l takes_value {takes_value}
  set -l words (commandline -opc)
  set -l is_value no
  for word in $words[2..-1]
    if test $is_value = yes
      set is_value no
    else if not string match -q -- '-*' $word
      return 1
    else if contains -- $word $takes_value
      set is_value yes
    end
  end
end
{lines}complete -c ddprun-launch -w ddprun
)";

// Text as it must stand inside single quotes.
std::string fish_text(std::string_view text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted;
}

// Returns the words behind an option in fish: -x is a value that is no file, -rF one that is.
std::string fish_value(const Flag& flag) {
  if (flag.kind == FlagKind::kSwitch) return "";
  if (names_files(flag)) return " -rF";
  const auto words = value_words(flag);
  return words.empty() ? " -x" : fmt::format(" -xa '{}'", fmt::join(words, " "));
}

std::string fish_script() {
  std::string lines;
  for (const Flag& flag : flag_table()) {
    const auto letter = flag.letter != 0 ? fmt::format(" -s {}", flag.letter) : "";
    lines += fmt::format("complete -c ddprun -n __ddprun_before_script{} -l {}{} -d '{}'\n", letter,
                         flag.name, fish_value(flag), fish_text(flag.help));
  }
  const auto takes_value =
      option_words([](const Flag& flag) { return flag.kind == FlagKind::kValue; });
  return fmt::format(fmt::runtime(kFish), fmt::arg("takes_value", fmt::join(takes_value, " ")),
                     fmt::arg("lines", lines));
}

// `c` completes within a word (`--tee=`), `n` the next word (`--tee 3`), `p` all other words.
std::string tcsh_script() {
  std::string script =
      "# tcsh completion for ddprun; load it by: ddprun --print-completion=tcsh > f; source f\n"
      "complete ddprun";
  for (const Flag& flag : flag_table()) {
    const auto words = value_words(flag);
    if (words.empty()) continue;
    script += fmt::format(" 'c/--{0}=/({1})/' 'n/--{0}/({1})/'", flag.name, fmt::join(words, " "));
  }
  std::vector<std::string> bare;
  for (const Flag& flag : flag_table()) bare.emplace_back(flag.name);
  return script + fmt::format(" 'c/--/({})/' 'p/*/f/'\n", fmt::join(bare, " "));
}

}  // namespace

std::string help_text(std::string_view called) {
  return fmt::format("usage: {} [options] SCRIPT [script arguments…]\n\n", called) +
         "Starts SCRIPT in several worker processes, watches them, restarts them and leaves "
         "nothing\n"
         "behind. A drop-in for torchrun. Options end at SCRIPT. Every option can be written with\n"
         "underscores, and set by PET_ and its name (PET_NPROC_PER_NODE=2).\n\n"
         "torchrun's options (a unique beginning is enough):\n" +
         help_lines(FlagOwner::kTorchrun) + "\nddprun's own (by their whole names):\n" +
         help_lines(FlagOwner::kDdprun);
}

std::vector<std::string> value_words(const Flag& flag) {
  std::vector<std::string> words;
  std::string_view rest = flag.metavar;
  while (!rest.empty()) {
    const auto end = std::min(rest.find('|'), rest.size());
    if (is_typed(rest.substr(0, end))) words.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return words;
}

std::string completion_script(std::string_view shell) {
  if (shell == "bash") return bash_script();
  if (shell == "zsh") return zsh_script();
  if (shell == "tcsh") return tcsh_script();
  if (shell == "fish") return fish_script();
  return {};
}

}  // namespace ddprun::launcher
