#include "rendezvous/election/etcd_plan.h"

#include <algorithm>
#include <cctype>

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kMaxGroupName = 64;

Error expected(const char* what) {
  return {ErrorCode::kInvalidArgument, std::string("expected ") + what};
}

// Finds the member that takes a text as it is.
std::string EtcdPlan::*member_of(std::string_view key) {
  if (key == "etcd_prefix") return &EtcdPlan::prefix;
  if (key == "cacert" || key == "ca_cert") return &EtcdPlan::ca_file;
  if (key == "cert" || key == "ssl_cert") return &EtcdPlan::cert_file;
  if (key == "key" || key == "ssl_cert_key") return &EtcdPlan::key_file;
  if (key == "username") return &EtcdPlan::username;
  if (key == "password") return &EtcdPlan::password;
  if (key == "password_file") return &EtcdPlan::password_file;
  return &EtcdPlan::daemons;
}

}  // namespace

std::optional<Error> check_group_name(std::string_view text) {
  const auto fits = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("._-").find(c) != std::string_view::npos;
  };
  if (!text.empty() && text.size() <= kMaxGroupName && std::all_of(text.begin(), text.end(), fits))
    return std::nullopt;
  return expected("a group of 1 to 64 letters, digits, dots, hyphens and underscores");
}

std::optional<Error> set_etcd(EtcdPlan& etcd, std::string_view key, std::string_view text) {
  if (key == "protocol") {
    if (text != "http" && text != "https") return expected("protocol to be http or https");
    etcd.with_tls = text == "https";
    return std::nullopt;
  }
  if (key == kDaemonsKey) {
    if (auto wrong = check_group_name(text)) return wrong;
  }
  etcd.*member_of(key) = text;
  return std::nullopt;
}

std::optional<Error> validate(const EtcdPlan& etcd) {
  const bool has_files = !etcd.ca_file.empty() || !etcd.cert_file.empty() || !etcd.key_file.empty();
  if (has_files && !etcd.with_tls) return expected("protocol=https with cacert, cert or key");
  if (etcd.cert_file.empty() != etcd.key_file.empty())
    return expected("both or none of cert and key");
  if (!etcd.password.empty() && !etcd.password_file.empty())
    return expected("one of password and password_file");
  if (etcd.username.empty() != (etcd.password + etcd.password_file).empty())
    return expected("both or none of username and password");
  return std::nullopt;
}

}  // namespace ddprun::rendezvous
