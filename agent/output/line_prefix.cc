#include "agent/output/line_prefix.h"

#include <optional>

namespace ddprun::agent {
namespace {

// ASCII only, as string.Template's `idpattern`; isalpha(3) would depend on the locale.
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool continues_name(char c) { return begins_name(c) || (c >= '0' && c <= '9'); }

// The identifier at the beginning of `text`; may be empty.
std::string_view name_at(std::string_view text) {
  if (text.empty() || !begins_name(text[0])) return {};
  std::size_t length = 1;
  while (length < text.size() && continues_name(text[length])) ++length;
  return text.substr(0, length);
}

// None if there is no macro of this name.
std::optional<std::string> value_of(std::string_view name, const PrefixValues& values) {
  if (name == "role_name") return values.role_name;
  if (name == "local_rank") return std::to_string(values.local_rank);
  if (name == "rank") return std::to_string(values.rank);
  if (name == "hostname") return values.hostname.substr(0, values.hostname.find('.'));
  if (name == "restart") return std::to_string(values.restart);
  return std::nullopt;
}

struct Macro {
  std::size_t length;  // of the macro in the template, with its dollar sign
  std::string value;   // what the prefix gets instead
};

// The macro at the beginning of `text`, which must begin with a dollar sign. If it is no macro,
// only the dollar sign is taken: a macro may begin right behind it.
Macro macro_at(std::string_view text, const PrefixValues& values) {
  if (text.starts_with("$$")) return {2, "$"};
  const bool braced = text.starts_with("${");
  const std::string_view name = name_at(text.substr(braced ? 2 : 1));
  const std::size_t end = (braced ? 2 : 1) + name.size();
  const bool closed = !braced || (end < text.size() && text[end] == '}');
  if (name.empty() || !closed) return {1, "$"};
  const std::size_t length = end + (braced ? 1 : 0);
  return {length, value_of(name, values).value_or(std::string(text.substr(0, length)))};
}

}  // namespace

std::string expand_prefix(std::string_view text, const PrefixValues& values) {
  std::string out;
  while (!text.empty()) {
    const std::size_t dollar = text.find('$');
    out += text.substr(0, dollar);
    if (dollar == std::string_view::npos) break;
    text.remove_prefix(dollar);
    const Macro macro = macro_at(text, values);
    out += macro.value;
    text.remove_prefix(macro.length);
  }
  return out;
}

}  // namespace ddprun::agent
