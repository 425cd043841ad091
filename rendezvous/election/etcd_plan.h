// The etcd in which agents, or daemons, elect the leader. The user names it, by keys of --rdzv-conf
// or of ddprund's --etcd-conf. Plain values, pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun::rendezvous {

struct EtcdMemberPlan {
  std::string host;
  std::uint16_t port = 2379;

  bool operator==(const EtcdMemberPlan&) const = default;
};

struct EtcdPlan {
  std::vector<EtcdMemberPlan> members;
  std::string prefix = "/ddprun";  // of a job's keys
  // The group of daemons of which one leads all jobs. If it is empty, the agents of the job elect
  // one of them.
  std::string daemons{};
  bool with_tls = false;
  // Paths of PEM files; empty: none.
  std::string ca_file;
  std::string cert_file;
  std::string key_file;
  std::string username;       // empty: none
  std::string password;       // never printed
  std::string password_file;  // a path, in place of `password`

  bool operator==(const EtcdPlan&) const = default;
};

// torchrun's two backends of etcd have two names for each file.
inline constexpr std::array<std::string_view, 11> kEtcdKeys = {
    "etcd_prefix", "protocol",     "cacert",   "ca_cert",  "cert",         "ssl_cert",
    "key",         "ssl_cert_key", "username", "password", "password_file"};
// The daemons of a group. Agents alone have this key.
inline constexpr std::string_view kDaemonsKey = "daemons";

// Sets what a key of kEtcdKeys, or kDaemonsKey, names. Error kInvalidArgument: what is expected,
// one clause.
std::optional<Error> set_etcd(EtcdPlan& etcd, std::string_view key, std::string_view text);
// Returns why the settings do not go together, in one clause.
std::optional<Error> validate(const EtcdPlan& etcd);

// It is a part of keys in etcd: 1 to 64 letters, digits, dots, hyphens and underscores.
std::optional<Error> check_group_name(std::string_view text);

}  // namespace ddprun::rendezvous
