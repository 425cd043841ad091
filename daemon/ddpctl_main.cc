// ddpctl: options -> one question -> what is printed -> exit code. Decides nothing itself.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/environment.h"
#include "base/limit_hint.h"
#include "base/net/resolvers.h"
#include "base/room_check.h"
#include "base/shown_text.h"
#include "daemon/ctl_local.h"
#include "daemon/ctl_options.h"
#include "daemon/ctl_output.h"
#include "daemon/ctl_top.h"
#include "daemon/ctl_waiting.h"
#include "launcher/scheduler/shared_token.h"
#include "proto/token_file.h"
#include "rendezvous/control/control_client.h"
#include "rendezvous/control/local_socket.h"

namespace ddprun::daemon {
namespace {

// `wait` asks again so often: the connection of a peer that is cut off says nothing.
constexpr std::chrono::milliseconds kWaitTurn{30'000};

// A group of daemons has a leader again so soon.
constexpr std::chrono::milliseconds kElectionLimit{6'000};
constexpr std::chrono::milliseconds kAskAgain{200};

// `top` shows jobs anew so often.
constexpr std::chrono::seconds kTopTurn{2};

// Empty if there is none.
Result<std::string> token_of(const CtlOptions& options, const EnvLookup& env) {
  if (!options.token_file.empty())
    return read_token_file(options.token_file, "--token-file=" + options.token_file);
  if (const auto token = env("DDPRUN_TOKEN"); token && !token->empty()) return *token;
  if (const auto path = env("DDPRUN_TOKEN_FILE"); path && !path->empty())
    return read_token_file(*path, "DDPRUN_TOKEN_FILE=" + *path);
  return std::string();
}

// Numeric; none where the name is unknown.
std::vector<std::string> addresses_of(const std::string& host) {
  boost::asio::io_context loop;
  boost::asio::ip::tcp::resolver resolver(loop);
  boost::system::error_code unknown;
  std::vector<std::string> addresses;
  for (const auto& found : resolver.resolve(host, "", unknown))
    addresses.push_back(found.endpoint().address().to_string());
  return addresses;
}

// Asks by the socket of the rendezvous on this host. That works without a token, and if the job has
// none.
std::optional<rendezvous::ControlAnswer> ask_locally(rendezvous::ControlTarget target,
                                                     const rendezvous::ControlQuestion& question) {
  target.local = rendezvous::connect_locally(target.addresses, target.port);
  target.token = {};
  if (target.local < 0) return std::nullopt;
  return rendezvous::ask(target, question);
}

rendezvous::ControlAnswer ask_once(const rendezvous::ControlTarget& target,
                                   const rendezvous::ControlQuestion& question) {
  rendezvous::ControlTarget remote = target;
  if (target.token.key.empty()) {
    if (auto answer = ask_locally(target, question)) return *std::move(answer);
    if (const auto path = launcher::shared_token_path(process_environment()))
      remote.token.key = launcher::read_shared_token(*path).value_or("");
  }
  auto answer = rendezvous::ask(remote, question);
  if (answer.outcome != rendezvous::ControlOutcome::kHasNoToken) return answer;
  if (auto local = ask_locally(target, question)) return *std::move(local);
  return answer;
}

rendezvous::ControlAnswer ask_one(const CtlOptions& options, const CtlEndpoint& endpoint,
                                  const std::string& token) {
  rendezvous::ControlTarget target{.host = endpoint.host,
                                   .addresses = addresses_of(endpoint.host),
                                   .port = endpoint.port,
                                   .token = {token},
                                   .tls = options.tls};
  if (target.addresses.empty())
    return {rendezvous::ControlOutcome::kUnreachable, "the host name is unknown"};
  if (options.command == CtlCommand::kWait) target.answer_limit = kWaitTurn;
  for (;;) {
    auto answer = ask_once(target, options.question);
    if (answer.outcome != rendezvous::ControlOutcome::kStillRunning) return answer;
  }
}

// The answers of several daemons that were asked one after another.
struct DaemonAnswers {
  std::optional<rendezvous::ControlAnswer> answer;  // of the one that leads
  std::size_t by_tls = 0;                           // so many do not fit in TLS
  std::string text;                                 // why the others gave none
};

DaemonAnswers ask_each(const CtlOptions& options, const std::string& token, CtlWaiting& waiting) {
  using rendezvous::ControlOutcome;
  DaemonAnswers asked;
  for (const CtlEndpoint& endpoint : options.endpoints) {
    auto answer = ask_one(options, endpoint, token);
    const bool is_tls = is_of_tls(answer.outcome);
    if (!is_tls && answer.outcome != ControlOutcome::kUnreachable) {
      asked.answer = std::move(answer);
      return asked;
    }
    asked.by_tls += is_tls ? 1 : 0;
    const std::string why = fmt::format("{}:{}: {}", endpoint.host, endpoint.port, answer.text);
    waiting.note(why);
    asked.text += (asked.text.empty() ? "" : "; ") + why;
  }
  return asked;
}

// Asks the one daemon, or of several the one that leads. While they elect one, none does: then they
// are asked again. Asking again mends no certificate.
rendezvous::ControlAnswer ask(const CtlOptions& options, const std::string& token,
                              CtlWaiting& waiting) {
  if (options.endpoints.size() == 1) return ask_one(options, options.endpoints.front(), token);
  auto until = std::chrono::steady_clock::now() + kElectionLimit;
  using rendezvous::ControlOutcome;
  for (;;) {
    const auto began = std::chrono::steady_clock::now();
    DaemonAnswers asked = ask_each(options, token, waiting);
    if (asked.answer) return *std::move(asked.answer);
    // One of them let us wait for long, and leads no more.
    const auto now = std::chrono::steady_clock::now();
    if (now - began >= kWaitTurn) until = now + kElectionLimit;
    const auto outcome = asked.by_tls > 0 ? ControlOutcome::kTls : ControlOutcome::kUnreachable;
    if (asked.by_tls == options.endpoints.size() || now >= until) return {outcome, asked.text};
    boost::asio::io_context loop;
    boost::asio::steady_timer(loop, kAskAgain).wait();
  }
}

// For people, while it lasts.
std::string what_is_awaited(const CtlOptions& options) {
  const std::string& job = options.question.job;
  std::string text = "an answer of";
  if (options.command == CtlCommand::kWait)
    text = job.empty() ? "the end of the job at" : fmt::format("the end of job '{}' at", job);
  for (const CtlEndpoint& endpoint : options.endpoints)
    text += fmt::format("{}{}:{}", &endpoint == &options.endpoints.front() ? " " : ", ",
                        endpoint.host, endpoint.port);
  return text;
}

std::string who() {
  std::string host(256, '\0');
  if (::gethostname(host.data(), host.size() - 1) != 0) host = "?";
  host.resize(host.find('\0') == std::string::npos ? host.size() : host.find('\0'));
  return "an operator on " + shown_text(host);
}

int tell(const CtlOptions& options, const rendezvous::ControlAnswer& answer) {
  std::fputs(output(options, answer).c_str(), stdout);
  const std::string wrong = error_text(options, answer);
  if (!wrong.empty()) std::fprintf(stderr, "ddpctl: %s\n", shown_text(wrong).c_str());
  // A full disk must not look like success.
  if (std::fflush(stdout) != 0) return kCtlFailed;
  return exit_code(answer);
}

TopScreen screen_of_terminal() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 0) return {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) return {.rows = 24};
  // The last line is the cursor's.
  return {.columns = size.ws_col, .rows = size.ws_row - 1U, .has_colours = true};
}

bool has_ended(const rendezvous::ControlAnswer& answer) {
  return std::ranges::all_of(answer.jobs, [](const auto& job) { return !job.end.empty(); });
}

// Shows jobs: once, or on a terminal until ctrl-C, their end, or an answer that is an error.
int show_top(const CtlOptions& options, const std::function<rendezvous::ControlAnswer()>& ask) {
  TopBefore before;
  for (;;) {
    const auto asked = std::chrono::steady_clock::now();
    rendezvous::ControlAnswer answer = ask();
    if (options.json || answer.outcome != rendezvous::ControlOutcome::kDone)
      return tell(options, answer);
    const TopScreen screen = screen_of_terminal();
    const std::string text =
        top_text(answer.jobs, before, screen, std::chrono::system_clock::now());
    std::fputs(screen.rows > 0 ? "\x1b[H\x1b[2J" : "", stdout);
    std::fputs(text.c_str(), stdout);
    if (std::fflush(stdout) != 0) return kCtlFailed;
    if (screen.rows == 0 || has_ended(answer)) return kCtlDone;
    boost::asio::io_context loop;
    boost::asio::steady_timer(loop, kTopTurn).wait();
    before = {std::move(answer.jobs), std::chrono::steady_clock::now() - asked};
  }
}

int run(CtlOptions options, const EnvLookup& env) {
  const bool is_top = options.command == CtlCommand::kTop;
  if (options.endpoints.empty() && is_top)
    return show_top(options, [&] { return ask_this_host(options); });
  if (options.endpoints.empty()) return tell(options, ask_this_host(options));
  if (auto* stop = std::get_if<rendezvous::StopJob>(&options.question.verb)) stop->by = who();
  const auto token = token_of(options, env);
  if (!token) {
    std::fprintf(stderr, "ddpctl: %s\n", shown_text(token.error().message()).c_str());
    return kCtlUsage;
  }
  wipe_variable("DDPRUN_TOKEN");
  if (!token->empty()) hide_memory();
  if (const auto sound = rendezvous::check_tls_files(options.tls); !sound) {
    std::fprintf(stderr, "ddpctl: %s\n", shown_text(sound.error().message()).c_str());
    return kCtlUsage;
  }
  if (const auto checked = check_room(kGrpcRoom); !checked) {
    std::fprintf(stderr, "ddpctl: %s\n", checked.error().message().c_str());
    return kCtlFailed;
  }
  const std::string key = rendezvous::key_of_token(*token);
  const auto ask_now = [&] {
    CtlWaiting waiting(what_is_awaited(options));
    return ask(options, key, waiting);
  };
  return is_top ? show_top(options, ask_now) : tell(options, ask_now());
}

}  // namespace
}  // namespace ddprun::daemon

int main(int argc, char** argv) {
  using namespace ddprun::daemon;  // NOLINT(google-build-using-namespace)
  ddprun::use_own_resolvers();
  ddprun::end_where_a_limit_is_hit("ddpctl");
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const ddprun::EnvLookup env = ddprun::process_environment();
  const auto parsed = parse_ctl(words, env);
  if (const auto* answer = std::get_if<CtlAnswer>(&parsed)) {
    std::fputs(answer->text.c_str(), stdout);
    return kCtlDone;
  }
  if (const auto* wrong = std::get_if<CtlUsageError>(&parsed)) {
    std::fprintf(stderr, "ddpctl: %s\n", ddprun::shown_text(wrong->message).c_str());
    return kCtlUsage;
  }
  return run(std::get<CtlOptions>(parsed), env);
}
