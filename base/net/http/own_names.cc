#include "base/net/http/own_names.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <fstream>
#include <sstream>
#include <utility>

namespace ddprun::http {
namespace {

// Names are compared without case (RFC 4343), and may end with the root's dot.
std::string plain(std::string_view name) {
  if (name.ends_with('.')) name.remove_suffix(1);
  std::string text(name);
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

// Cuts the port off: "name:80", "[::1]:80", "name".
std::string_view without_port(std::string_view header) {
  if (header.starts_with('[')) {
    const auto end = header.find(']');
    return end == std::string_view::npos ? header : header.substr(1, end - 1);
  }
  return header.substr(0, header.find(':'));
}

std::pair<std::string_view, std::string_view> first_label(std::string_view name) {
  const auto dot = name.find('.');
  if (dot == std::string_view::npos) return {name, {}};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

bool is_within(std::string_view name, std::string_view domain) {
  return name == domain || (name.size() > domain.size() && name.ends_with(domain) &&
                            name[name.size() - domain.size() - 1] == '.');
}

}  // namespace

OwnNames own_names(std::string host) {
  OwnNames names{.host = std::move(host), .domains = {}};
  std::ifstream file("/etc/resolv.conf");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    if (!(words >> word) || (word != "search" && word != "domain")) continue;
    while (words >> word) names.domains.push_back(word);
  }
  return names;
}

bool is_own_name(std::string_view header, const OwnNames& own) {
  if (header.empty()) return true;
  const std::string name = plain(without_port(header));
  boost::system::error_code is_a_name;
  boost::asio::ip::make_address(name, is_a_name);
  if (!is_a_name || name == "localhost" || is_within(name, "localhost")) return true;
  const std::string host = plain(own.host);
  if (host.empty()) return false;
  if (name == host) return true;
  const auto [label, rest] = first_label(name);
  const auto [own_label, own_domain] = first_label(host);
  if (label != own_label) return false;
  // No site has a name of one or two labels behind which nothing stands but our own.
  if (rest.empty() || rest == own_domain) return true;
  return std::ranges::any_of(own.domains, [behind = rest](const std::string& given) {
    const std::string domain = plain(given);
    return domain.find('.') != std::string::npos && is_within(behind, domain);
  });
}

}  // namespace ddprun::http
