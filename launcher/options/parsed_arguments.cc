#include "launcher/options/parsed_arguments.h"

#include <fmt/format.h>
#include <getopt.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "base/hide_password.h"
#include "launcher/options/flag_values.h"

namespace ddprun::launcher {
namespace {

// getopt_long returns this value or more for a long option, which is above any letter. Each flag
// has 2 values, so that its two spellings differ. Only then does getopt_long call a prefix of both
// ambiguous, as argparse does.
constexpr int kFirstLongValue = 1000;

// An error that argparse finds: exit code 2.
UsageError usage(std::string_view what, std::string_view why) {
  return {2, fmt::format("{}: {}", what, why)};
}

std::string underscored(std::string_view name) {
  std::string copy(name);
  std::replace(copy.begin(), copy.end(), '-', '_');
  return copy;
}

// The value of a switch's variable. torchrun takes any whole number and nothing else; the words are
// ours.
std::optional<bool> truth(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (text == "true" || text == "yes") return true;
  if (text == "false" || text == "no") return false;
  const auto number = parse_int(text);
  if (!number) return std::nullopt;
  return *number != 0;
}

// -1, -1.5 or -.5: argparse takes these words as values, though they begin with a dash.
bool is_negative_number(std::string_view text) {
  if (text.size() < 2 || text[0] != '-') return false;
  return text.find_first_not_of("0123456789.", 1) == std::string_view::npos &&
         std::count(text.begin(), text.end(), '.') <= 1 && text.back() != '.';
}

// argparse's test. A word with a blank in it is a value, even if it begins with a dash.
bool looks_like_option(std::string_view text) {
  return text.size() > 1 && text[0] == '-' && !is_negative_number(text) &&
         text.find(' ') == std::string_view::npos;
}

// After --help and its like nothing more is looked at, so that errors behind them do not count.
bool ends_reading(const ParsedArguments& given) {
  return given.has(FlagId::kHelp) || given.has(FlagId::kVersion) ||
         given.has(FlagId::kPrintCompletion);
}

// The flag of ddprun's own that a word names, or nullptr. It must be the whole name. getopt_long
// never sees these flags: there they would make prefixes ambiguous that are unique with torchrun.
const Flag* own_flag(std::string_view word) {
  if (!word.starts_with("--")) return nullptr;
  const auto bare = word.substr(2, word.find('=') - 2);
  for (const Flag& flag : flag_table()) {
    if (flag.owner != FlagOwner::kDdprun) continue;
    if (bare == flag.name || bare == underscored(flag.name)) return &flag;
  }
  return nullptr;
}

// torchrun's flags in the form that getopt_long reads. Owns the names that it points to.
class LongOptions {
 public:
  LongOptions() {
    int value = kFirstLongValue;
    for (const Flag& flag : flag_table()) {
      // The values count all rows of the table, so that a value gives back its row.
      if (flag.owner == FlagOwner::kTorchrun) add(flag, value);
      value += 2;
    }
    options_.push_back({nullptr, 0, nullptr, 0});
  }

  const char* letters() const { return letters_.c_str(); }
  const option* data() const { return options_.data(); }

  // The flag behind a value that getopt_long returned or left in optopt, or nullptr.
  static const Flag* flag(int value) {
    for (const Flag& flag : flag_table()) {
      if (flag.letter != 0 && flag.letter == value) return &flag;
    }
    const int index = (value - kFirstLongValue) / 2;
    if (value < kFirstLongValue || index >= std::ssize(flag_table())) return nullptr;
    return &flag_table()[static_cast<std::size_t>(index)];
  }

  // Names that `prefix` could stand for, each with its dashes.
  std::vector<std::string> candidates(std::string_view prefix) const {
    std::vector<std::string> found;
    for (const std::string& name : names_) {
      if (name.starts_with(prefix)) found.push_back("--" + name);
    }
    return found;
  }

 private:
  void add(const Flag& flag, int value) {
    add_name(std::string(flag.name), flag, value);
    if (flag.name.find('-') != std::string_view::npos)
      add_name(underscored(flag.name), flag, value + 1);
    if (flag.letter == 0) return;
    letters_ += flag.letter;
    if (flag.kind == FlagKind::kValue) letters_ += ':';
  }

  void add_name(std::string name, const Flag& flag, int value) {
    names_.push_back(std::move(name));
    const int argument = flag.kind == FlagKind::kValue ? required_argument : no_argument;
    options_.push_back({names_.back().c_str(), argument, nullptr, value});
  }

  // A deque, because its elements never move: options_ has pointers into them.
  std::deque<std::string> names_;
  std::vector<option> options_;
  // "+": stop at the first operand. ":": answer a missing value with ':', not with '?'.
  std::string letters_ = "+:";
};

// One pass of getopt_long over argv. getopt_long's state is global, so only one pass runs at a
// time.
class ArgvReader {
 public:
  explicit ArgvReader(std::vector<std::string> args) : words_(std::move(args)) {
    words_.insert(words_.begin(), "ddprun");
    for (std::string& word : words_) argv_.push_back(word.data());
    argv_.push_back(nullptr);
    opterr = 0;
    // With 0 and not 1, glibc forgets all of an earlier pass (getopt(3), NOTES).
    optind = 0;
    // This call has nothing to read. glibc sets itself up in it; after that read_into() may move
    // `optind` past words that getopt_long must not see.
    // NOLINTNEXTLINE(concurrency-mt-unsafe): main thread, before any other is started
    getopt_long(1, argv_.data(), options_.letters(), options_.data(), nullptr);
  }

  std::optional<UsageError> read_into(ParsedArguments& given) {
    while (!ends_reading(given)) {
      const std::string word = word_at(optind);
      if (const Flag* own = own_flag(word)) {
        if (auto error = take_own(*own, word, given)) return error;
        continue;
      }
      const int value = next();
      if (value == -1) {
        take_operands(given);
        break;
      }
      if (auto error = take(value, word, given)) return error;
    }
    return std::nullopt;
  }

 private:
  int next() {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): main thread, before any other is started
    return getopt_long(static_cast<int>(words_.size()), argv_.data(), options_.letters(),
                       options_.data(), nullptr);
  }

  std::string word_at(int index) const {
    const auto at = static_cast<std::size_t>(index);
    return at < words_.size() ? words_[at] : std::string();
  }

  std::optional<UsageError> take(int value, const std::string& word, ParsedArguments& given) {
    if (value == '?' || value == ':') return refusal(value, word);
    const Flag& flag = *LongOptions::flag(value);
    const std::string name = fmt::format("--{}", flag.name);
    if (flag.kind == FlagKind::kSwitch) {
      given.flags[flag.id] = {"1", name, false};
      return std::nullopt;
    }
    std::string text = optarg;
    // getopt_long takes any next word as the value; argparse does not take an option for one.
    const bool separate = optarg == argv_[static_cast<std::size_t>(optind - 1)];
    if (separate && looks_like_option(text)) return usage(name, "expected a value");
    // argparse allows `-t=3`; getopt_long leaves the `=` in the value.
    if (!separate && value < kFirstLongValue && text.starts_with('=')) text.erase(0, 1);
    given.flags[flag.id] = {text, fmt::format("{}={}", name, text), false};
    return std::nullopt;
  }

  // Takes one of ddprun's own: `--name`, `--name=text` or `--name text`.
  std::optional<UsageError> take_own(const Flag& flag, const std::string& word,
                                     ParsedArguments& given) {
    ++optind;
    const std::string name = fmt::format("--{}", flag.name);
    const auto equals = word.find('=');
    if (flag.kind == FlagKind::kSwitch && equals == std::string::npos) {
      given.flags[flag.id] = {"1", name, false};
      return std::nullopt;
    }
    // With a value it is no flag of ours: torchrun takes `--local-rank=0` as an abbreviation.
    if (flag.id == FlagId::kLocalRank) {
      const std::string ranks = word.substr(equals + 1);
      given.flags[FlagId::kLocalRanksFilter] = {
          ranks, fmt::format("--local-ranks-filter={}", ranks), false};
      return std::nullopt;
    }
    if (flag.kind == FlagKind::kSwitch) return usage(word, "this option takes no value");
    std::string text = equals == std::string::npos ? word_at(optind) : word.substr(equals + 1);
    if (equals == std::string::npos) {
      const bool missing = optind >= std::ssize(words_) || looks_like_option(text);
      if (missing) return usage(name, "expected a value");
      ++optind;
    }
    given.flags[flag.id] = {text, fmt::format("{}={}", name, text), false};
    return std::nullopt;
  }

  // Returns the error about `word`. If getopt_long knows the flag, and only its form is wrong,
  // optopt has the flag's value. For an unknown or ambiguous word it has 0 or the letter.
  UsageError refusal(int value, const std::string& word) const {
    const Flag* flag = LongOptions::flag(optopt);
    if (flag != nullptr && value == ':')
      return usage("--" + std::string(flag->name), "expected a value");
    if (flag != nullptr) return usage(word, "this option takes no value");
    const std::string bare = word.substr(0, word.find('='));
    const auto candidates =
        bare.starts_with("--") ? options_.candidates(bare.substr(2)) : std::vector<std::string>();
    if (candidates.empty()) return usage(word, "unknown option; ddprun --help lists them");
    return usage(bare, fmt::format("ambiguous, could be {}", fmt::join(candidates, ", ")));
  }

  // SCRIPT and what follows it. argparse drops one `--` (seen with Python 3.11). It is the one
  // right before SCRIPT, which getopt_long has skipped by now. Else it is the one right after it.
  // All later ones are the script's.
  void take_operands(ParsedArguments& given) {
    auto at = static_cast<std::size_t>(optind);
    if (at >= words_.size()) return;
    const bool dropped_one = words_[at - 1] == "--" && at > 1;
    given.has_script = true;
    given.script = words_[at++];
    if (!dropped_one && at < words_.size() && words_[at] == "--") ++at;
    given.script_args.assign(words_.begin() + static_cast<std::ptrdiff_t>(at), words_.end());
  }

  LongOptions options_;
  std::vector<std::string> words_;
  std::vector<char*> argv_;
};

// Takes a flag from its PET_ variable, if that is set and the command line does not have the flag.
std::optional<UsageError> read_variable(const Flag& flag, const EnvLookup& env,
                                        ParsedArguments& given) {
  if (!flag.from_environment || given.has(flag.id)) return std::nullopt;
  const std::string variable = pet_variable(flag);
  const auto text = env(variable);
  if (!text) return std::nullopt;
  ParsedFlag entry{*text, fmt::format("{}={}", variable, *text), true};
  if (flag.kind == FlagKind::kSwitch) {
    const auto on = truth(*text);
    if (!on) {
      return UsageError{1,
                        fmt::format("{}: expected 1 or 0, true or false, yes or no", entry.shown)};
    }
    entry.text = *on ? "1" : "0";
  }
  given.flags[flag.id] = std::move(entry);
  return std::nullopt;
}

}  // namespace

std::string ParsedArguments::text(FlagId id) const {
  const auto found = flags.find(id);
  return found != flags.end() ? found->second.text : std::string(flag_of(id).standard);
}

std::string ParsedArguments::shown(FlagId id) const {
  const auto found = flags.find(id);
  if (id == FlagId::kRdzvConf && found != flags.end()) return hide_passwords(found->second.shown);
  return found != flags.end() ? found->second.shown
                              : fmt::format("--{}={}", flag_of(id).name, flag_of(id).standard);
}

bool ParsedArguments::differs(FlagId id) const { return text(id) != flag_of(id).standard; }

std::variant<ParsedArguments, UsageError> read_flags(const std::vector<std::string>& args,
                                                     const EnvLookup& env) {
  ParsedArguments given;
  if (auto error = ArgvReader(args).read_into(given)) return *error;
  if (ends_reading(given)) return given;
  for (const Flag& flag : flag_table()) {
    if (auto error = read_variable(flag, env, given)) return *error;
  }
  return given;
}

}  // namespace ddprun::launcher
