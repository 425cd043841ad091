// Hides secrets of `KEY=VALUE,…` settings for messages: every etcd password in them becomes
// `…`.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace ddprun {

inline std::string hide_passwords(std::string settings) {
  constexpr std::string_view kSecret = "password=";
  for (std::size_t at = 0; (at = settings.find(kSecret, at)) != std::string::npos;) {
    at += kSecret.size();
    settings.replace(at, std::min(settings.find(',', at), settings.size()) - at, "…");
  }
  return settings;
}

}  // namespace ddprun
