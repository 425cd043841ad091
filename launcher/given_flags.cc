#include "launcher/given_flags.h"

#include <fmt/format.h>
#include <getopt.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "launcher/flag_values.h"

namespace ddprun::launcher {
namespace {

// Long options get values above any letter: 2 per flag, so that the two spellings of one flag
// differ. getopt_long calls a prefix of both ambiguous only then, as argparse does.
constexpr int kFirstLongValue = 1000;

UsageError usage(std::string_view what, std::string_view why) {
  return {2, fmt::format("ddprun: {}: {}", what, why)};
}

std::string underscored(std::string_view name) {
  std::string copy(name);
  std::replace(copy.begin(), copy.end(), '-', '_');
  return copy;
}

std::optional<bool> truth(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (text == "true" || text == "yes") return true;
  if (text == "false" || text == "no") return false;
  const auto number = parse_int(text);  // torchrun takes any integer and nothing else
  if (!number) return std::nullopt;
  return *number != 0;
}

// -1, -1.5, -.5: argparse takes these as values, everything else with a dash in front as an option.
bool is_negative_number(std::string_view text) {
  if (text.size() < 2 || text[0] != '-') return false;
  return text.find_first_not_of("0123456789.", 1) == std::string_view::npos &&
         std::count(text.begin(), text.end(), '.') <= 1 && text.back() != '.';
}

bool looks_like_option(std::string_view text) {
  return text.size() > 1 && text[0] == '-' && !is_negative_number(text) &&
         text.find(' ') == std::string_view::npos;
}

// --help and its like: what follows them is not looked at.
bool ends_reading(const GivenFlags& given) {
  return given.has(FlagId::kHelp) || given.has(FlagId::kVersion) ||
         given.has(FlagId::kPrintCompletion);
}

// The flag of ddprun's own that a word names, or nullptr. By its whole name only: getopt_long never
// sees these, so that they cannot make a prefix ambiguous which is unique with torchrun.
const Flag* own_flag(std::string_view word) {
  if (!word.starts_with("--")) return nullptr;
  const auto bare = word.substr(2, word.find('=') - 2);
  for (const Flag& flag : flag_table()) {
    if (flag.owner != FlagOwner::kDdprun) continue;
    if (bare == flag.name || bare == underscored(flag.name)) return &flag;
  }
  return nullptr;
}

// getopt_long's view of torchrun's flags. Owns the names it points to.
class LongOptions {
 public:
  LongOptions() {
    int value = kFirstLongValue;
    for (const Flag& flag : flag_table()) {
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

  std::deque<std::string> names_;  // a deque: option holds pointers into it
  std::vector<option> options_;
  // "+": stop at the first operand. ":": tell a missing value from an unknown option.
  std::string letters_ = "+:";
};

// One pass of getopt_long over argv. Its state is global, so there is one pass at a time.
class ArgvReader {
 public:
  explicit ArgvReader(std::vector<std::string> args) : words_(std::move(args)) {
    words_.insert(words_.begin(), "ddprun");
    for (std::string& word : words_) argv_.push_back(word.data());
    argv_.push_back(nullptr);
    opterr = 0;
    optind = 0;  // 0, not 1: glibc forgets all of an earlier pass
    // Nothing to read yet, but glibc sets itself up, so that `optind` may be moved on from here.
    // NOLINTNEXTLINE(concurrency-mt-unsafe): main thread, before any other is started
    getopt_long(1, argv_.data(), options_.letters(), options_.data(), nullptr);
  }

  std::optional<UsageError> read_into(GivenFlags& given) {
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

  std::optional<UsageError> take(int value, const std::string& word, GivenFlags& given) {
    if (value == '?' || value == ':') return refusal(value, word);
    const Flag& flag = *LongOptions::flag(value);
    const std::string name = fmt::format("--{}", flag.name);
    if (flag.kind == FlagKind::kSwitch) {
      given.flags[flag.id] = {"1", name, false};
      return std::nullopt;
    }
    std::string text = optarg;
    const bool separate = optarg == argv_[static_cast<std::size_t>(optind - 1)];
    if (separate && looks_like_option(text)) return usage(name, "expected a value");
    if (!separate && value < kFirstLongValue && text.starts_with('=')) text.erase(0, 1);  // -t=3
    given.flags[flag.id] = {text, fmt::format("{}={}", name, text), false};
    return std::nullopt;
  }

  // One of ddprun's own: `--name`, `--name=text` or `--name text`.
  std::optional<UsageError> take_own(const Flag& flag, const std::string& word, GivenFlags& given) {
    ++optind;
    const std::string name = fmt::format("--{}", flag.name);
    const auto equals = word.find('=');
    if (flag.kind == FlagKind::kSwitch && equals == std::string::npos) {
      given.flags[flag.id] = {"1", name, false};
      return std::nullopt;
    }
    if (flag.id == FlagId::kLocalRank) {  // torchrun knows `--local-rank=0` as an abbreviation
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

  // SCRIPT and what follows. argparse drops a `--` that stands right before SCRIPT (getopt_long has
  // done so by now) or right after it, the first one only (observed with Python 3.11); all later
  // ones belong to the script.
  void take_operands(GivenFlags& given) {
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

// A flag from its PET_ variable, where that is set and the command line is silent.
std::optional<UsageError> read_variable(const Flag& flag, const EnvLookup& env, GivenFlags& given) {
  if (!flag.from_environment || given.has(flag.id)) return std::nullopt;
  const std::string variable = pet_variable(flag);
  const auto text = env(variable);
  if (!text) return std::nullopt;
  Given entry{*text, fmt::format("{}={}", variable, *text), true};
  if (flag.kind == FlagKind::kSwitch) {
    const auto on = truth(*text);
    if (!on) {
      return UsageError{
          1, fmt::format("ddprun: {}: expected 1 or 0, true or false, yes or no", entry.shown)};
    }
    entry.text = *on ? "1" : "0";
  }
  given.flags[flag.id] = std::move(entry);
  return std::nullopt;
}

}  // namespace

std::string GivenFlags::text(FlagId id) const {
  const auto found = flags.find(id);
  return found != flags.end() ? found->second.text : std::string(flag_of(id).standard);
}

std::string GivenFlags::shown(FlagId id) const {
  const auto found = flags.find(id);
  return found != flags.end() ? found->second.shown
                              : fmt::format("--{}={}", flag_of(id).name, flag_of(id).standard);
}

bool GivenFlags::differs(FlagId id) const { return text(id) != flag_of(id).standard; }

std::variant<GivenFlags, UsageError> read_flags(const std::vector<std::string>& args,
                                                const EnvLookup& env) {
  GivenFlags given;
  if (auto error = ArgvReader(args).read_into(given)) return *error;
  if (ends_reading(given)) return given;
  for (const Flag& flag : flag_table()) {
    if (auto error = read_variable(flag, env, given)) return *error;
  }
  return given;
}

}  // namespace ddprun::launcher
