#include "rendezvous/election/find_etcd.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/net/name_lookup.h"
#include "base/pem.h"
#include "proto/token_file.h"

namespace ddprun::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;

// An empty path is an empty text: the file was not asked for.
Result<std::string> read_pem(const std::string& key, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxPemBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.find("-----BEGIN") == std::string::npos || text.size() > kMaxPemBytes)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}={}: expected a readable PEM file", key, path));
  return text;
}

Result<EtcdOptions> options_of(const EtcdPlan& plan, const std::string& flag) {
  EtcdOptions options{
      .with_tls = plan.with_tls, .username = plan.username, .password = plan.password};
  if (!plan.password_file.empty()) {
    auto password =
        read_token_file(plan.password_file, flag + ": password_file=" + plan.password_file);
    if (!password) return password.error();
    options.password = *std::move(password);
  }
  if (!plan.with_tls) return options;
  auto ca = read_pem(flag + ": cacert", plan.ca_file);
  auto cert = read_pem(flag + ": cert", plan.cert_file);
  auto key = read_pem(flag + ": key", plan.key_file);
  for (const auto* one : {&ca, &cert, &key})
    if (!*one) return one->error();
  options.ca = *std::move(ca);
  options.cert = *std::move(cert);
  options.key = *std::move(key);
  return options;
}

// The members that were looked up once. Those that are not known are named in `unknown`.
struct FoundMembers {
  std::vector<EtcdMember> members;
  std::vector<std::string> unknown;
  std::string last_problem;
};

asio::awaitable<FoundMembers> look_up_members(asio::io_context& loop, const EtcdPlan& plan,
                                              std::chrono::milliseconds limit) {
  FoundMembers all;
  for (const EtcdMemberPlan& member : plan.members) {
    auto found = co_await look_up(loop, member.host, limit);
    if (!found) {
      all.last_problem = found.error().message();
      all.unknown.push_back(member.host);
      continue;
    }
    EtcdMember& known = all.members.emplace_back();
    known.host = member.host;
    known.port = member.port;
    for (const auto& address : *found) known.addresses.push_back(address.to_string());
  }
  co_return all;
}

}  // namespace

asio::awaitable<Result<EtcdOptions>> find_etcd(asio::io_context& loop, EtcdPlan plan,
                                               std::chrono::milliseconds limit, const char* flag) {
  auto options = options_of(plan, flag);
  if (!options) co_return options.error();
  const Clock::time_point deadline = Clock::now() + limit;
  const bool is_only = plan.members.size() == 1;
  while (true) {
    auto found = co_await look_up_members(loop, plan, is_only ? limit : kMemberLookUp);
    if (!found.members.empty()) {
      if (!found.unknown.empty())
        log::warning(fmt::format(
            "etcd: the hosts of {} of {} members are not known ({}); the others are asked",
            found.unknown.size(), plan.members.size(), fmt::join(found.unknown, ", ")));
      options->members = std::move(found.members);
      co_return *std::move(options);
    }
    if (Clock::now() >= deadline) co_return Error(ErrorCode::kNotFound, found.last_problem);
  }
}

asio::ip::address member_to_reach(const EtcdOptions& options) {
  const auto address_of = [](const EtcdMember& member) {
    return asio::ip::make_address(member.addresses.front());
  };
  for (const EtcdMember& member : options.members)
    if (!address_of(member).is_loopback()) return address_of(member);
  return address_of(options.members.front());
}

}  // namespace ddprun::rendezvous
