#include "agent/monitors/health_port.h"

#include <utility>

#include "agent/core/config.h"
#include "base/net/listener.h"

namespace ddprun::agent {

Result<std::unique_ptr<HealthPort>> HealthPort::open(asio::io_context& loop, std::uint16_t port,
                                                     std::function<std::string()> state,
                                                     std::chrono::milliseconds limit) {
  auto bound = bind_listener(loop, "::", port, kHealthPortVariable);
  // On a host without IPv6 bind_listener() takes IPv4 by itself. `::` may fail for other reasons.
  if (!bound)  // such as another program that listens there for IPv6 only
    bound = bind_listener(loop, "0.0.0.0", port, kHealthPortVariable);
  if (!bound) return bound.error();
  http::Pages pages = {{http::kAnyPath, [state = std::move(state)] {
                          return http::HttpResponse{.type = "application/json", .body = state()};
                        }}};
  // One answer a connection: an idle one would keep one of the few places.
  const http::HttpLimits limits{.head = limit,
                                .answer = limit,
                                .idle = std::chrono::milliseconds(0),
                                .connections = kMostProbes,
                                .fresh_for = std::chrono::milliseconds(0)};
  return std::unique_ptr<HealthPort>(
      new HealthPort(loop, std::move(*bound), std::move(pages), limits));
}

}  // namespace ddprun::agent
