#include "examples/mnist/options.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

namespace ddprun::examples {
namespace {

// Stores the value. Returns false if the value is not accepted.
using Store = bool (*)(Options&, const std::string&);

struct Flag {
  std::string_view name;
  std::string_view value;     // its placeholder in the help; empty: the flag takes no value
  std::string_view accepted;  // completes "expected …"
  std::string_view help;
  Store store;
};

// The whole text must be a number: "3x" and " 3" are refused, which std::stoi would take.
template <typename Number>
std::optional<Number> parse_number(const std::string& text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}

bool store_count(int& into, const std::string& text, int most) {
  const auto count = parse_number<int>(text);
  if (!count || *count < 1 || *count > most) return false;
  into = *count;
  return true;
}

// std::from_chars also reads "nan" and "inf": they are no learning rates.
bool store_rate(double& into, const std::string& text) {
  const auto rate = parse_number<double>(text);
  if (!rate || !std::isfinite(*rate) || *rate <= 0) return false;
  into = *rate;
  return true;
}

bool store_seed(std::uint64_t& into, const std::string& text) {
  const auto seed = parse_number<std::uint64_t>(text);
  if (seed) into = *seed;
  return seed.has_value();
}

bool store_path(std::filesystem::path& into, const std::string& text) {
  into = text;
  return !text.empty();
}

bool store_progress(ProgressMode& into, const std::string& text) {
  if (text == "auto")
    into = ProgressMode::kAuto;
  else if (text == "always")
    into = ProgressMode::kAlways;
  else if (text == "never")
    into = ProgressMode::kNever;
  else
    return false;
  return true;
}

// One table for parsing and for --help, so that the two cannot differ. clang-format would break
// each flag into many lines.
// clang-format off
constexpr std::array kFlags{
    Flag{"--data", "DIR", "a folder", "folder of MNIST's four IDX files, gzipped or not (the 5,000 digits of the project)",
         [](Options& o, const std::string& v) { return store_path(o.data, v); }},
    Flag{"--epochs", "N", "a whole number from 1 to 100000", "passes over the training digits (5)",
         [](Options& o, const std::string& v) { return store_count(o.epochs, v, kMaxEpochs); }},
    Flag{"--batch-size", "N", "a whole number from 1 to 100000", "digits a worker and step (32)",
         [](Options& o, const std::string& v) { return store_count(o.batch_size, v, kMaxBatchSize); }},
    Flag{"--lr", "RATE", "a number above 0", "learning rate of the first epoch, x 0.7 each epoch (0.05)",
         [](Options& o, const std::string& v) { return store_rate(o.lr, v); }},
    Flag{"--seed", "N", "a whole number from 0", "of the weights, the shuffling and the dropout (1)",
         [](Options& o, const std::string& v) { return store_seed(o.seed, v); }},
    Flag{"--checkpoint", "FILE", "a file", "save here after each epoch; a restarted or resized job goes on from it (none)",
         [](Options& o, const std::string& v) { return store_path(o.checkpoint, v); }},
    Flag{"--resume", "", "", "go on from the checkpoint also when the job is started anew",
         [](Options& o, const std::string& /*v*/) { return o.resume = true; }},
    Flag{"--progress", "WHEN", "auto, always or never", "a line that is rewritten: on a terminal, always, or no steps (auto)",
         [](Options& o, const std::string& v) { return store_progress(o.progress, v); }},
    Flag{"--help", "", "", "print this",
         [](Options& o, const std::string& /*v*/) { return o.help = true; }},
};
// clang-format on

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

const Flag* find_flag(std::string_view name) {
  for (const Flag& flag : kFlags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

// Takes one flag off `rest`, and its value too if that is an argument of its own.
Result<void> take_flag(Options& options, std::vector<std::string>::const_iterator& rest,
                       std::vector<std::string>::const_iterator end) {
  const std::string argument = *rest++;
  const std::size_t equals = argument.find('=');
  const std::string name = argument.substr(0, equals);
  const Flag* flag = find_flag(name);
  if (flag == nullptr) return invalid(fmt::format("{}: unknown argument; --help lists all", name));
  std::optional<std::string> value;
  if (equals != std::string::npos) value = argument.substr(equals + 1);
  if (flag->value.empty()) {
    if (value) return invalid(fmt::format("{}: takes no value, got '{}'", name, *value));
    flag->store(options, {});
    return {};
  }
  if (!value && rest != end) value = *rest++;
  if (!value) return invalid(fmt::format("{}: no value given, expected {}", name, flag->accepted));
  if (!flag->store(options, *value)) {
    return invalid(fmt::format("{}: '{}' given, expected {}", name, *value, flag->accepted));
  }
  return {};
}

}  // namespace

Result<Options> parse_options(const std::vector<std::string>& arguments) {
  Options options;
  for (auto rest = arguments.begin(); rest != arguments.end();) {
    if (auto taken = take_flag(options, rest, arguments.end()); !taken) return taken.error();
  }
  if (options.resume && options.checkpoint.empty())
    return invalid("--resume: needs --checkpoint FILE");
  return options;
}

std::string help_text() {
  std::string text =
      "Trains a convolutional net on handwritten digits, data-parallel: alone, or under ddprun as\n"
      "  ddprun --standalone --nproc-per-node=2 mnist [options]\n\n";
  for (const Flag& flag : kFlags) {
    text += fmt::format("  {:<18} {}\n", fmt::format("{} {}", flag.name, flag.value), flag.help);
  }
  return text;
}

}  // namespace ddprun::examples
