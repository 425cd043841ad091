#include "examples/common/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "base/numbers.h"

namespace ddprun::examples {
namespace {

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

}  // namespace

Flags::Flags(std::string about) : about_(std::move(about)) { on("--help", help_, "print this"); }

void Flags::count(const std::string& name, int& into, const std::string& help) {
  const auto accepted = fmt::format("a whole number from 1 to {}", kMaxCount);
  flags_.push_back({name, "N", accepted, help, [&into](const std::string& text) {
                      const auto number = parse_whole<int>(text);
                      if (!number || *number < 1 || *number > kMaxCount) return false;
                      into = *number;
                      return true;
                    }});
}

// parse_whole() also reads "nan" and "inf": they are no rates.
void Flags::rate(const std::string& name, double& into, const std::string& help) {
  flags_.push_back({name, "RATE", "a number above 0", help, [&into](const std::string& text) {
                      const auto number = parse_whole<double>(text);
                      if (!number || !std::isfinite(*number) || *number <= 0) return false;
                      into = *number;
                      return true;
                    }});
}

void Flags::seed(const std::string& name, std::uint64_t& into, const std::string& help) {
  flags_.push_back({name, "N", "a whole number from 0", help, [&into](const std::string& text) {
                      const auto number = parse_whole<std::uint64_t>(text);
                      if (number) into = *number;
                      return number.has_value();
                    }});
}

void Flags::path(const std::string& name, std::filesystem::path& into, const std::string& kind,
                 const std::string& help) {
  flags_.push_back({name, kind == "folder" ? "DIR" : "FILE", "a " + kind, help,
                    [&into](const std::string& text) {
                      into = text;
                      return !text.empty();
                    }});
}

void Flags::word(const std::string& name, std::string& into,
                 const std::vector<std::string>& accepted, const std::string& help) {
  const std::vector<std::string> first(accepted.begin(), accepted.end() - 1);
  flags_.push_back({name, "WORD", fmt::format("{} or {}", fmt::join(first, ", "), accepted.back()),
                    help, [&into, accepted](const std::string& text) {
                      into = text;
                      return std::ranges::find(accepted, text) != accepted.end();
                    }});
}

void Flags::on(const std::string& name, bool& into, const std::string& help) {
  flags_.push_back({name, "", "", help, [&into](const std::string&) { return into = true; }});
}

// Takes one flag off `rest`, and its value too if that is an argument of its own.
Result<void> Flags::take(std::vector<std::string>::const_iterator& rest,
                         std::vector<std::string>::const_iterator end) {
  const std::string argument = *rest++;
  const std::size_t equals = argument.find('=');
  const std::string name = argument.substr(0, equals);
  const auto flag = std::ranges::find(flags_, name, &Flag::name);
  if (flag == flags_.end())
    return invalid(fmt::format("{}: unknown argument; --help lists all", name));
  std::optional<std::string> value;
  if (equals != std::string::npos) value = argument.substr(equals + 1);
  if (flag->value.empty()) {
    if (value) return invalid(fmt::format("{}: takes no value, got '{}'", name, *value));
    flag->store({});
    return {};
  }
  if (!value && rest != end) value = *rest++;
  if (!value) return invalid(fmt::format("{}: no value given, expected {}", name, flag->accepted));
  if (!flag->store(*value))
    return invalid(fmt::format("{}: '{}' given, expected {}", name, *value, flag->accepted));
  return {};
}

Result<void> Flags::parse(const std::vector<std::string>& arguments) {
  for (auto rest = arguments.begin(); rest != arguments.end();) {
    if (auto taken = take(rest, arguments.end()); !taken) return taken.error();
  }
  return {};
}

std::string Flags::help_text() const {
  std::string text = about_ + "\n\n";
  for (const Flag& flag : flags_)
    text += fmt::format("  {:<18} {}\n", fmt::format("{} {}", flag.name, flag.value), flag.help);
  return text;
}

}  // namespace ddprun::examples
