#include "launcher/doctor/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/shown_text.h"

namespace ddprun::launcher {
namespace {

std::string_view word_of(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warn";
    case Level::kFailure:
      return "FAIL";
  }
  return "";
}

}  // namespace

bool has_failure(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& one) { return one.level == Level::kFailure; });
}

std::string text_of(const Findings& findings, std::string_view host) {
  std::string text;
  for (const Finding& one : findings) {
    if (!host.empty()) text += fmt::format("{}: ", shown_text(host));
    text +=
        fmt::format("{:<4} {}: {}", word_of(one.level), shown_text(one.what), shown_text(one.fact));
    if (!one.remedy.empty()) text += " — " + shown_text(one.remedy);
    text += '\n';
  }
  return text;
}

std::string json_of(std::string_view host, const Findings& findings) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Finding& one : findings) {
    checks.push_back({{"level", word_of(one.level)},
                      {"what", one.what},
                      {"fact", one.fact},
                      {"remedy", one.remedy}});
  }
  const nlohmann::ordered_json all = {
      {"host", host}, {"failed", has_failure(findings)}, {"checks", std::move(checks)}};
  // A name may hold bytes that are no UTF-8.
  return all.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ddprun::launcher
