// ddprund: options -> Daemon -> until a signal. Decides nothing itself.
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/host_name.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/environment.h"
#include "base/limit_hint.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/net/addresses.h"
#include "base/net/descriptors.h"
#include "base/net/listener.h"
#include "base/net/own_address.h"
#include "base/net/resolvers.h"
#include "base/room_check.h"
#include "base/shown_text.h"
#include "daemon/daemon.h"
#include "daemon/daemon_options.h"
#include "daemon/daemon_status.h"
#include "daemon/memory.h"
#include "daemon/service_manager.h"
#include "proto/token_file.h"
#include "rendezvous/control/pages/status_pages.h"
#include "rendezvous/election/find_etcd.h"

namespace ddprun::daemon {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

int fail(const std::string& message, int exit_code) {
  std::fprintf(stderr, "ddprund: %s\n", shown_text(message).c_str());
  return exit_code;
}

// Empty if there is none.
Result<std::string> token_of(const DaemonOptions& options, const EnvLookup& env) {
  if (!options.token_file.empty())
    return read_token_file(options.token_file, "--token-file=" + options.token_file);
  if (const auto token = env("DDPRUN_TOKEN"); token && !token->empty()) return *token;
  if (const auto path = env("DDPRUN_TOKEN_FILE"); path && !path->empty())
    return read_token_file(*path, "DDPRUN_TOKEN_FILE=" + *path);
  return std::string();
}

// At the start of a host its network may not be there yet. A daemon that leads at a loopback
// address leads nobody.
asio::awaitable<Result<std::string>> find_own_address(std::string listens_at,
                                                      asio::ip::address etcd) {
  constexpr std::chrono::seconds kLookEvery{1};
  asio::steady_timer pause(co_await asio::this_coro::executor);
  for (bool told = false;; told = true) {
    const auto found = own_address(listens_at, etcd, local_address_for(etcd));
    if (!found) co_return found.error();
    if (*found) co_return **found;
    if (!told)
      log::warning(
          fmt::format("no way to etcd at {} yet, and no address that other hosts reach; "
                      "looking again",
                      etcd.to_string()));
    co_await expires(pause, kLookEvery);
  }
}

// `failed`: as of Daemon::join_group(). A name of etcd that is unknown is asked for again and
// again.
asio::awaitable<void> join_group(asio::io_context& loop, Daemon& daemon,
                                 const DaemonOptions& options,
                                 std::function<void(const Error&)> failed) {
  constexpr std::chrono::hours kForEver{24 * 365 * 100};
  auto etcd = co_await rendezvous::find_etcd(loop, options.etcd, kForEver, "--etcd-conf");
  if (!etcd) co_return failed(etcd.error());
  const auto address =
      co_await find_own_address(options.address, rendezvous::member_to_reach(*etcd));
  if (!address) co_return failed(address.error());
  daemon.join_group(*std::move(etcd), *address, std::move(failed));
}

// Serves the pages if --http asks for it. A port that cannot be had is a warning: the jobs are
// worth more.
std::optional<http::Server> serve_status(asio::io_context& loop, const DaemonOptions& options,
                                         const Daemon& daemon, bool has_token) {
  if (!options.http) return std::nullopt;
  const std::string& address = options.http->address;
  auto bound = bind_listener(loop, address.empty() ? loopback_address().to_string() : address,
                             options.http->port, "--http");
  if (!bound) {
    log::warning(fmt::format("no metrics and no status page: {}", bound.error().message()));
    return std::nullopt;
  }
  std::fprintf(stderr, "ddprund: metrics and status page at %s\n",
               http::url_of(bound->local_endpoint()).c_str());
  const bool is_public = !bound->local_endpoint().address().is_loopback();
  const auto report = [&daemon, hostname = asio::ip::host_name(),
                       hides_ids = is_public && !has_token,
                       started = std::chrono::system_clock::now()] {
    return daemon_status({.hostname = hostname,
                          .jobs = daemon.shown_jobs(),
                          .leads = daemon.leads(),
                          .started = started,
                          .hides_ids = hides_ids});
  };
  return std::optional<http::Server>(
      std::in_place, loop, *std::move(bound), http::status_pages(report),
      http::HttpLimits{.names = http::own_names(asio::ip::host_name())});
}

int run(const DaemonOptions& options, const EnvLookup& env) {
  const auto token = token_of(options, env);
  if (!token) return fail(token.error().message(), kUsage);
  hide_memory();
  wipe_variable("DDPRUN_TOKEN");
  if (token->empty())
    log::warning(
        "no token is set: anyone who reaches the port and knows a job's id can join it, and ddpctl "
        "works on this host only; set DDPRUN_TOKEN or --token-file");
  log::set_level(log::Level::kInfo);  // who leads
  ::signal(SIGPIPE, SIG_IGN);
  raise_descriptor_limit();
  if (const auto checked = check_room(kGrpcRoom); !checked)
    return fail(checked.error().message(), kFailed);
  read_program_in();
  const std::string manager = env("NOTIFY_SOCKET").value_or("");
  asio::io_context loop(1);
  asio::signal_set signals(loop, SIGTERM, SIGINT);
  Daemon daemon(loop, options, *token);
  if (const auto opened = daemon.open(); !opened) return fail(opened.error().message(), kFailed);
  if (!token->empty() && token->size() < kShortToken)
    log::warning(fmt::format(
        "the token has {} bytes: an impostor of this host can find it by trying; make one with "
        "`openssl rand -hex 32`",
        token->size()));
  const auto pages = serve_status(loop, options, daemon, !token->empty());
  signals.async_wait([&](const boost::system::error_code& error, int) {
    if (error) return;
    tell_service_manager(manager, "STOPPING=1");
    daemon.stop([&loop] { loop.stop(); });
  });
  int exit_code = 0;
  const auto failed = [&](const Error& error) {
    exit_code = fail(error.message(), kFailed);
    loop.stop();
  };
  if (options.has_group()) spawn(loop, "group", join_group(loop, daemon, options, failed));
  std::fprintf(stderr, "ddprund: serves the rendezvous on port %d\n", int{daemon.port()});
  if (!tell_service_manager(manager, "READY=1")) log::warning("NOTIFY_SOCKET: cannot be told");
  loop.run();
  return exit_code;
}

}  // namespace
}  // namespace ddprun::daemon

int main(int argc, char** argv) {
  using namespace ddprun::daemon;  // NOLINT(google-build-using-namespace)
  ddprun::use_own_resolvers();
  ddprun::end_where_a_limit_is_hit("ddprund");
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const auto parsed = parse_daemon(words, read_config);
  if (const auto* answer = std::get_if<DaemonAnswer>(&parsed)) {
    std::fputs(answer->text.c_str(), stdout);
    return 0;
  }
  if (const auto* wrong = std::get_if<DaemonUsageError>(&parsed))
    return fail(wrong->message, kUsage);
  return run(std::get<DaemonOptions>(parsed), ddprun::process_environment());
}
