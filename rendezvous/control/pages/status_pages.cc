#include "rendezvous/control/pages/status_pages.h"

#include <fmt/format.h>

#include "base/shown_text.h"
#include "rendezvous/control/pages/metrics_text.h"
#include "rendezvous/control/pages/status_page.h"

namespace ddprun::http {
namespace {

HttpResponse health(const StatusReport& report) {
  if (report.unhealthy.empty()) return {.body = "ok\n"};
  return {.status = 503, .body = shown_text(report.unhealthy) + "\n"};
}

}  // namespace

Pages status_pages(const std::function<StatusReport()>& report) {
  return {{"/",
           [report] {
             return HttpResponse{200, std::string(kPageType), status_page(report())};
           }},
          {"/metrics",
           [report] {
             return HttpResponse{200, std::string(kMetricsType), metrics_text(report())};
           }},
          {"/healthz", [report] { return health(report()); }}};
}

std::string url_of(const boost::asio::ip::tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("http://[{}]:{}/", address, endpoint.port())
                                    : fmt::format("http://{}:{}/", address, endpoint.port());
}

}  // namespace ddprun::http
