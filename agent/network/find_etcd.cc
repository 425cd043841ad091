#include "agent/network/find_etcd.h"

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <utility>

#include "agent/network/name_lookup.h"

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;

// An empty path is an empty text: the file was not asked for. `key`: of --rdzv-conf.
Result<std::string> read_pem(const char* key, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxPemBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.find("-----BEGIN") == std::string::npos || text.size() > kMaxPemBytes)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("--rdzv-conf: {}={}: expected a readable PEM file", key, path));
  return text;
}

Result<rendezvous::EtcdOptions> options_of(const EtcdPlan& plan) {
  rendezvous::EtcdOptions options{
      .with_tls = plan.with_tls, .username = plan.username, .password = plan.password};
  if (!plan.with_tls) return options;
  auto ca = read_pem("cacert", plan.ca_file);
  auto cert = read_pem("cert", plan.cert_file);
  auto key = read_pem("key", plan.key_file);
  for (const auto* one : {&ca, &cert, &key})
    if (!*one) return one->error();
  options.ca = *std::move(ca);
  options.cert = *std::move(cert);
  options.key = *std::move(key);
  return options;
}

}  // namespace

asio::awaitable<Result<rendezvous::EtcdOptions>> find_etcd(asio::io_context& loop, EtcdPlan plan,
                                                           std::chrono::milliseconds limit) {
  auto options = options_of(plan);
  if (!options) co_return options.error();
  const Clock::time_point deadline = Clock::now() + limit;
  std::string last_problem;
  while (true) {
    for (const EtcdMemberPlan& member : plan.members) {
      const bool is_only = plan.members.size() == 1;
      auto found = co_await look_up(loop, member.host, is_only ? limit : kMemberLookUp);
      if (!found) {
        last_problem = found.error().message();
        continue;
      }
      rendezvous::EtcdMember& known = options->members.emplace_back();
      known.host = member.host;
      known.port = member.port;
      for (const auto& address : *found) known.addresses.push_back(address.to_string());
    }
    if (!options->members.empty()) co_return *std::move(options);
    if (Clock::now() >= deadline) co_return Error(ErrorCode::kNotFound, last_problem);
  }
}

asio::ip::address facing(const rendezvous::EtcdOptions& options) {
  const auto address_of = [](const rendezvous::EtcdMember& member) {
    return asio::ip::make_address(member.addresses.front());
  };
  for (const rendezvous::EtcdMember& member : options.members)
    if (!address_of(member).is_loopback()) return address_of(member);
  return address_of(options.members.front());
}

}  // namespace ddprun::agent
