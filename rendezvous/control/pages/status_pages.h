// The pages by which a process tells of itself. They are the page for people, /metrics and
// /healthz, made of a report when they are asked for. An agent and a daemon serve the same ones. No
// state; any thread.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <string>

#include "base/net/http/server.h"
#include "rendezvous/control/pages/status_report.h"

namespace ddprun::http {

// `report` is called for each page that is made, from the server's loop.
Pages status_pages(const std::function<StatusReport()>& report);

// "http://127.0.0.1:9400/"
std::string url_of(const boost::asio::ip::tcp::endpoint& endpoint);

}  // namespace ddprun::http
