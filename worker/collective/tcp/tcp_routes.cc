#include "worker/collective/tcp/tcp_routes.h"

namespace ddprun::worker {

namespace {

std::span<std::byte> bytes_of(const Flat& flat, std::size_t begin, std::size_t end) {
  const std::size_t size = size_of(flat.dtype);
  return {static_cast<std::byte*>(flat.data) + begin * size, (end - begin) * size};
}

void add_parts(TcpRoutes& routes, const Flat& flat, std::span<const Part> parts, int rank) {
  routes.out.resize(1);
  for (const Part& part : parts) {
    auto& row =
        part.owner == rank ? routes.out[0] : routes.in[static_cast<std::size_t>(part.owner)];
    row.add(bytes_of(flat, part.begin, part.end));
  }
}

void add_transfers(TcpRoutes& routes, const Flat& flat, std::span<const Transfer> transfers,
                   int rank) {
  routes.out.resize(routes.in.size());
  for (const Transfer& one : transfers) {
    if (one.from == one.to) continue;
    if (one.from == rank) {
      routes.out[static_cast<std::size_t>(one.to)].add(bytes_of(flat, one.begin, one.end));
    } else if (one.to == rank) {
      const std::size_t end = one.target + (one.end - one.begin);
      routes.in[static_cast<std::size_t>(one.from)].add(bytes_of(flat, one.target, end));
    }
  }
}

}  // namespace

TcpRoutes tcp_routes_of(const Flat& flat, const LaunchRequest& request, int rank, int ranks) {
  TcpRoutes routes{.in = std::vector<TcpScattered>(static_cast<std::size_t>(ranks)),
                   .hash = request.hash()};
  if (request.sharing == Sharing::kAllGather)
    add_parts(routes, flat, request.parts, rank);
  else
    add_transfers(routes, flat, request.transfers, rank);
  return routes;
}

}  // namespace ddprun::worker
