#include "agent/network/taken_port.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

namespace ddprun::agent {

using rendezvous::Session;

Session::MessageHandler telling_who_has_the_port(Session::MessageHandler handler,
                                                 std::string refusal) {
  return [handler = std::move(handler),
          refusal = std::move(refusal)](rendezvous::HostMessage item) {
    auto* lost = std::get_if<rendezvous::SessionLost>(&item);
    if (lost != nullptr && !lost->was_reached) {
      lost->error =
          Error(lost->error.code(),
                fmt::format("{}; this host could not serve the endpoint itself: {} (is it another "
                            "program's port?)",
                            lost->error.message(), refusal));
    }
    handler(std::move(item));
  };
}

}  // namespace ddprun::agent
