#include "launcher/doctor/examination.h"

#include <nlohmann/json.hpp>
#include <vector>

namespace ddprun::launcher {
namespace {

using nlohmann::json;

std::optional<Finding> finding_of(const json& one) {
  if (!one.is_array() || one.size() != 4 || !one[0].is_number_unsigned()) return std::nullopt;
  for (std::size_t i = 1; i < one.size(); ++i)
    if (!one[i].is_string()) return std::nullopt;
  const auto level = one[0].get<unsigned>();
  if (level > static_cast<unsigned>(Level::kFailure)) return std::nullopt;
  return Finding{static_cast<Level>(level), one[1].get<std::string>(), one[2].get<std::string>(),
                 one[3].get<std::string>()};
}

}  // namespace

std::string write_examination(const Examination& examination) {
  json findings = json::array();
  for (const Finding& one : examination.findings)
    findings.push_back({static_cast<unsigned>(one.level), one.what, one.fact, one.remedy});
  const Peer& self = examination.self;
  const auto bytes =
      json::to_cbor(json::array({self.host_name, self.torch, self.driver, std::move(findings)}));
  return {bytes.begin(), bytes.end()};
}

std::optional<Examination> read_examination(std::string_view bytes) {
  const json all = json::from_cbor(bytes.begin(), bytes.end(), true, false);
  if (!all.is_array() || all.size() != 4 || !all[3].is_array()) return std::nullopt;
  for (std::size_t i = 0; i < 3; ++i)
    if (!all[i].is_string()) return std::nullopt;
  Examination found{.self = {.host_name = all[0].get<std::string>(),
                             .torch = all[1].get<std::string>(),
                             .driver = all[2].get<std::string>()}};
  for (const json& one : all[3]) {
    const auto finding = finding_of(one);
    if (!finding) return std::nullopt;
    found.findings.push_back(*finding);
  }
  return found;
}

}  // namespace ddprun::launcher
