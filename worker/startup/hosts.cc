#include "worker/startup/hosts.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/net/address.h"
#include "worker/collective/core/split.h"
#include "worker/collective/hierarchical/hierarchical_collective.h"
#include "worker/startup/init_method/own_address.h"
#include "worker/startup/init_method/rank_places.h"
#include "worker/startup/store_exchange.h"

namespace ddprun::worker {
namespace {

// Returns the address at which this rank listens.
Result<std::string> own_address(const WorkerEnv& world, const StoreExchange& exchange) {
  const auto interfaces = interface_addresses();
  if (!interfaces) return interfaces.error();
  return choose_address(*interfaces, {.interfaces = named_interfaces(),
                                      .towards_store = exchange.local_address(),
                                      .one_host = names_this_host(world.master_addr)});
}

// Every rank tells where it is; but not one that has no `address`.
Result<std::vector<RankPlace>> gather_places(const WorkerEnv& world,
                                             const Result<std::string>& address,
                                             Exchange& exchange) {
  if (auto all_here = exchange.arrive(); !all_here) return all_here.error();
  const auto place =
      address ? Result<std::string>(fmt::format("{} {} {}", world.node_rank, world.local_rank,
                                                world.local_world_size))
              : Result<std::string>(address.error());
  const auto texts = gather_or_fail(exchange, world.rank, place);
  if (!texts) return texts.error();
  std::vector<RankPlace> places;
  for (const std::string& text : *texts) {
    RankPlace theirs;
    if (std::sscanf(text.c_str(), "%d %d %d", &theirs.node_rank, &theirs.local_rank,
                    &theirs.local_ranks) != 3)
      return Error(ErrorCode::kProtocol, "a rank did not say where it is: " + text);
    places.push_back(theirs);
  }
  return places;
}

// Joins the groups of this rank, each over an exchange of its own.
class HostsJoin {
 public:
  HostsJoin(const WorkerEnv& world, const HostsOptions& options, std::string address)
      : world_(world), options_(options), address_(std::move(address)), host_(this_host().name) {}

  Result<std::unique_ptr<TcpCollective>> all() {
    return tcp({.name = "tcp/all", .rank = world_.rank, .ranks = world_.world_size});
  }

  Result<std::unique_ptr<TcpCollective>> peers() {
    return tcp({.name = fmt::format("tcp/{}", world_.local_rank),
                .rank = world_.rank / world_.local_world_size,
                .ranks = world_.world_size / world_.local_world_size});
  }

  Result<std::unique_ptr<HostCollective>> host() {
    auto exchange = meet_over_store(world_, options_.timeout,
                                    {.name = fmt::format("shm/{}", world_.node_rank),
                                     .rank = world_.local_rank,
                                     .ranks = world_.local_world_size});
    if (!exchange) return exchange.error();
    return join_shm(
        {.rank = world_.local_rank, .ranks = world_.local_world_size, .timeout = options_.timeout},
        **exchange);
  }

 private:
  Result<std::unique_ptr<TcpCollective>> tcp(const StoreGroup& group) {
    auto exchange = meet_over_store(world_, options_.timeout, group);
    if (!exchange) return exchange.error();
    const TcpJob job{.rank = group.rank,
                     .ranks = group.ranks,
                     .address = address_,
                     .host = host_,
                     .timeout = options_.timeout,
                     .wire = options_.wire,
                     .congestion_control = options_.congestion_control};
    return join_tcp(job, **exchange);
  }

  const WorkerEnv& world_;
  HostsOptions options_;
  std::string address_;
  std::string host_;
};

}  // namespace

Result<std::unique_ptr<Collective>> join_hosts(const WorkerEnv& world,
                                               const HostsOptions& options) {
  auto exchange = meet_over_store(world, options.timeout,
                                  {.name = "hosts", .rank = world.rank, .ranks = world.world_size});
  if (!exchange) return exchange.error();
  const auto address = own_address(world, **exchange);
  const auto places = gather_places(world, address, **exchange);
  if (!address) return address.error();
  if (!places) return places.error();
  HostsJoin join(world, options, *address);
  auto all = join.all();
  if (!all) return all.error();
  if (!is_uniform(*places) || places->front().local_ranks == 1)
    return std::unique_ptr<Collective>(std::move(*all));
  auto peers = join.peers();
  if (!peers) return peers.error();
  auto host = join.host();
  if (!host) return host.error();
  return make_hierarchical_collective({.host = std::move(*host),
                                       .peers = std::move(*peers),
                                       .all = std::move(*all),
                                       .timeout = options.timeout});
}

}  // namespace ddprun::worker
