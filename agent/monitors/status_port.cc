#include "agent/monitors/status_port.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "base/net/addresses.h"
#include "base/net/listener.h"
#include "rendezvous/control/pages/status_pages.h"

namespace ddprun::agent {

using asio::ip::tcp;

std::unique_ptr<StatusPort> StatusPort::open(asio::io_context& loop, Console& console,
                                             Sources sources) {
  const auto& plan = sources.config.http;
  if (!plan) return nullptr;
  auto bound =
      bind_listener(loop, plan->address.empty() ? loopback_address().to_string() : plan->address,
                    plan->port, "--http");
  if (!bound) {
    log::warning(fmt::format("no metrics and no status page: {}", bound.error().message()));
    return nullptr;
  }
  const std::string url = http::url_of(bound->local_endpoint());
  if (!sources.config.quiet)
    console.write(fmt::format("{}: metrics and status page at {}\n", sources.config.called, url));
  return std::unique_ptr<StatusPort>(new StatusPort(loop, std::move(*bound), std::move(sources)));
}

StatusPort::StatusPort(asio::io_context& loop, tcp::acceptor bound, Sources sources)
    : sources_(std::move(sources)),
      is_public_(!bound.local_endpoint().address().is_loopback()),
      steps_alarm_(loop, [this] { look_at_steps(); }),
      server_(loop, std::move(bound), http::status_pages([this] { return report(); }),
              {.names = http::own_names(sources_.hostname)}) {
  look_at_steps();
}

void StatusPort::look_at_steps() {
  steps_.note(sources_.progress(), now());
  steps_alarm_.set(now() + StepHistory::kEvery);
}

http::StatusReport StatusPort::report() const {
  return node_status({.config = sources_.config,
                      .hostname = sources_.hostname,
                      .lifecycle = sources_.lifecycle,
                      .incidents = sources_.incidents,
                      .timeline = sources_.timeline,
                      .services = sources_.services.get(),
                      .progress = sources_.progress(),
                      .children = sources_.children,
                      .steps = steps_,
                      .started = started_,
                      .is_public = is_public_});
}

}  // namespace ddprun::agent
