#include "launcher/options/flag_values.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>

#include "base/numbers.h"

namespace ddprun::launcher {
namespace {

Error expected(std::string_view what) {
  return {ErrorCode::kInvalidArgument, fmt::format("expected {}", what)};
}

// All parts, empty ones too: one part more than separators.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// As Python's int() and float(), which take a '+' too.
template <typename Number>
std::optional<Number> parse_signed(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  return parse_whole<Number>(text);
}

// The longest pause if --restart-backoff names none.
constexpr std::chrono::minutes kDefaultBackoffMax{1};

constexpr std::string_view kStreamsWords = "0, 1, 2 or 3 (none, stdout, stderr, both)";

// One digit, 0 to 3, as torchrun's regular expression wants it.
std::optional<Streams> parse_streams(std::string_view text) {
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') return std::nullopt;
  return static_cast<Streams>(text[0] - '0');
}

// Tells whether torchrun allows the character in a host; `%` is for the zone of a link-local v6
// address.
bool is_host_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("_.:-%").find(c) != std::string_view::npos;
}

bool is_host(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_host_character);
}

struct EndpointParts {
  std::string_view host;
  std::optional<std::string_view> port{};
};

// Splits at the brackets, or else at the one colon. Nothing for a v6 address without brackets, or
// for an open bracket.
std::optional<EndpointParts> split_endpoint(std::string_view text) {
  if (!text.starts_with('[')) {
    const auto parts = split(text, ':');
    if (parts.size() == 1) return EndpointParts{text};
    return parts.size() == 2 ? std::optional(EndpointParts{parts[0], parts[1]}) : std::nullopt;
  }
  const auto close = text.find(']');
  if (close == std::string_view::npos) return std::nullopt;
  const auto host = text.substr(1, close - 1);
  const auto rest = text.substr(close + 1);
  if (rest.empty()) return EndpointParts{host};
  return rest[0] == ':' ? std::optional(EndpointParts{host, rest.substr(1)}) : std::nullopt;
}

// IPv4 or IPv6, without brackets.
bool is_numeric_address(const std::string& text) {
  in6_addr address{};
  return ::inet_pton(AF_INET, text.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

// The words of torchrun's get_as_bool() (torch/distributed/elastic/rendezvous/api.py).
Result<bool> parse_switch(std::string_view key, std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const auto* word : {"1", "true", "t", "yes", "y"}) {
    if (text == word) return true;
  }
  for (const auto* word : {"0", "false", "f", "no", "n"}) {
    if (text == word) return false;
  }
  return expected(fmt::format("{} to be 1 or 0, true or false, yes or no", key));
}

// Checks the value of one key and puts it into the RendezvousConf. Returns what is wrong with it.
using ConfSetter = std::function<std::optional<Error>(RendezvousConf&, std::string_view)>;

// The check of a key whose value is a whole number above 0.
std::optional<Error> check_positive(std::string_view key, std::string_view text) {
  const auto value = parse_signed<std::int64_t>(text);
  if (value && *value > 0) return std::nullopt;
  return expected(fmt::format("{} to be a whole number above 0", key));
}

// The same for a number that may be 0.
std::optional<Error> check_not_negative(std::string_view key, std::string_view text) {
  const auto value = parse_signed<std::int64_t>(text);
  if (value && *value >= 0) return std::nullopt;
  return expected(fmt::format("{} to be a whole number from 0", key));
}

// The check of a value.
using Check = std::optional<Error> (*)(std::string_view key, std::string_view text);

// Puts a number of seconds that passes `check` into a time. More than kMaxSeconds is taken as
// kMaxSeconds: people write "for ever" so, and torchrun takes a million years, too.
template <class Length>
std::optional<Error> set_seconds(Length& time, std::string_view text,
                                 const std::optional<Error>& error) {
  if (error) return error;
  const auto most = static_cast<std::int64_t>(kMaxSeconds);
  time = std::chrono::seconds(std::min(*parse_signed<std::int64_t>(text), most));
  return std::nullopt;
}

// A key whose value is a number of seconds.
ConfSetter seconds(std::string_view key, std::chrono::seconds RendezvousConf::*member) {
  return [key, member](RendezvousConf& conf, std::string_view text) {
    return set_seconds(conf.*member, text, check_positive(key, text));
  };
}

ConfSetter seconds(std::string_view key,
                   std::chrono::milliseconds rendezvous::RoundSettings::*member,
                   Check check = check_positive) {
  return [key, member, check](RendezvousConf& conf, std::string_view text) {
    return set_seconds(conf.settings.*member, text, check(key, text));
  };
}

std::optional<Error> set_keep_alive_interval(RendezvousConf& conf, std::string_view text) {
  const auto value = parse_int(text);
  if (!value || *value < 1 || *value > kMaxKeepAlive)
    return expected(
        fmt::format("keep_alive_interval to be a number of seconds from 1 to {}", kMaxKeepAlive));
  conf.keep_alive_interval = std::chrono::seconds(*value);
  return std::nullopt;
}

std::optional<Error> set_max_attempt(RendezvousConf& conf, std::string_view text) {
  const auto value = parse_int(text);
  if (!value || *value < 1 || *value > kMaxKeepAlive)
    return expected(
        fmt::format("keep_alive_max_attempt to be a number from 1 to {}", kMaxKeepAlive));
  conf.keep_alive_max_attempt = *value;
  return std::nullopt;
}

// A key that has no effect here. It is checked even so: a value that torchrun refuses is refused.
ConfSetter checked_only(std::string_view key) {
  return
      [key](RendezvousConf& /*conf*/, std::string_view text) { return check_positive(key, text); };
}

std::optional<Error> set_is_host(RendezvousConf& conf, std::string_view text) {
  const auto value = parse_switch("is_host", std::string(text));
  if (!value) return value.error();
  conf.is_host = *value;
  return std::nullopt;
}

// `file` is a word of torchrun for which nothing is built yet, so it is refused by name.
std::optional<Error> check_store_type(RendezvousConf& /*conf*/, std::string_view text) {
  if (text == "tcp") return std::nullopt;
  if (text == "file") return Error(ErrorCode::kRejected, "store_type=file is not built yet");
  return expected("store_type to be tcp");
}

// torchrun 2.15 pauses after a lost compare-and-set. Nothing is lost that way here, so the key is
// only checked.
std::optional<Error> check_backoff(RendezvousConf& /*conf*/, std::string_view text) {
  const auto value = parse_number(text);
  if (value && *value >= 0) return std::nullopt;
  return expected("cas_backoff_max_seconds to be a number from 0");
}

ConfSetter etcd_value(std::string_view key) {
  return [key](RendezvousConf& conf, std::string_view text) {
    return rendezvous::set_etcd(conf.etcd, key, text);
  };
}

ConfSetter tls_file(std::string agent::TlsPlan::*member) {
  return [member](RendezvousConf& conf, std::string_view text) {
    conf.tls.*member = text;
    return std::optional<Error>();
  };
}

ConfSetter on_or_off(std::string_view key, bool& (*field)(RendezvousConf&)) {
  return [key, field](RendezvousConf& conf, std::string_view text) {
    const auto value = parse_switch(key, std::string(text));
    if (value) field(conf) = *value;
    return value ? std::nullopt : std::optional(value.error());
  };
}

// All keys that torchrun's backends read, and our own. A key that is not here is unknown and only
// warned of.
std::map<std::string_view, ConfSetter> make_conf_setters() {
  using Conf = RendezvousConf;
  using Round = rendezvous::RoundSettings;
  std::map<std::string_view, ConfSetter> setters = {
      {"is_host", set_is_host},
      {"store_type", check_store_type},
      {"cas_backoff_max_seconds", check_backoff},
      {"join_timeout", seconds("join_timeout", &Round::join_timeout)},
      {"last_call_timeout", seconds("last_call_timeout", &Round::last_call)},
      {"resize_wait", seconds("resize_wait", &Round::resize_wait, check_not_negative)},
      {"resize_interval", seconds("resize_interval", &Round::resize_interval, check_not_negative)},
      {"read_timeout", seconds("read_timeout", &Conf::read_timeout)},
      {"timeout", seconds("timeout", &Conf::timeout)},
      {"close_timeout", checked_only("close_timeout")},
      {"heartbeat_timeout", checked_only("heartbeat_timeout")},
      {"keep_alive_interval", set_keep_alive_interval},
      {"keep_alive_max_attempt", set_max_attempt},
      {"tls_ca", tls_file(&agent::TlsPlan::ca_file)},
      {"tls_cert", tls_file(&agent::TlsPlan::cert_file)},
      {"tls_key", tls_file(&agent::TlsPlan::key_file)},
      {"tls_mixed", on_or_off("tls_mixed", [](Conf& c) -> bool& { return c.tls.is_mixed; })},
      {"resume", on_or_off("resume", [](Conf& c) -> bool& { return c.resumes; })},
      {rendezvous::kDaemonsKey, etcd_value(rendezvous::kDaemonsKey)},
  };
  for (const std::string_view key : rendezvous::kEtcdKeys) setters.emplace(key, etcd_value(key));
  return setters;
}

const std::map<std::string_view, ConfSetter>& conf_setters() {
  static const std::map<std::string_view, ConfSetter> setters = make_conf_setters();
  return setters;
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const auto is_blank = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

Streams StdSpec::of(int local_rank) const {
  const auto found = by_rank.find(local_rank);
  return found != by_rank.end() ? found->second : others;
}

bool StdSpec::none() const {
  return others == Streams::kNone &&
         std::all_of(by_rank.begin(), by_rank.end(),
                     [](const auto& entry) { return entry.second == Streams::kNone; });
}

std::optional<int> parse_int(std::string_view text) { return parse_signed<int>(text); }

std::optional<double> parse_number(std::string_view text) {
  const auto value = parse_signed<double>(text);
  if (!value || !std::isfinite(*value)) return std::nullopt;
  return value;
}

Result<NodeCount> parse_node_count(std::string_view text) {
  const auto words = fmt::format("N or MIN:MAX with 0 < MIN <= MAX <= {}", kMaxNodes);
  const auto parts = split(text, ':');
  if (parts.size() > 2) return expected(words);
  const auto min = parse_int(parts.front());
  const auto max = parse_int(parts.back());
  if (!min || !max || *min <= 0 || *max < *min || *max > kMaxNodes) return expected(words);
  return NodeCount{*min, *max};
}

Result<StdSpec> parse_std_spec(std::string_view text) {
  const auto words = fmt::format("{}, or RANK:DIGIT,…", kStreamsWords);
  if (const auto all = parse_streams(text)) return StdSpec{*all, {}};
  StdSpec spec;
  for (const auto pair : split(text, ',')) {
    const auto parts = split(pair, ':');
    if (parts.size() != 2) return expected(words);
    const auto rank = parse_int(parts[0]);
    const auto streams = parse_streams(parts[1]);
    if (!rank || *rank < 0 || *rank >= kMaxWorkersPerNode || !streams) return expected(words);
    spec.by_rank[*rank] = *streams;
  }
  return spec;
}

Result<Endpoint> parse_endpoint(std::string_view text) {
  const auto error = expected("HOST, HOST:PORT, [V6] or [V6]:PORT with a port up to 65535");
  const auto parts = split_endpoint(trimmed(text));
  if (!parts || !is_host(parts->host)) return error;
  Endpoint endpoint{std::string(parts->host), {}};
  if (!parts->port) return endpoint;
  const auto port = parse_int(*parts->port);
  if (!port || *port < 0 || *port > kMaxPort) return error;
  endpoint.port = static_cast<std::uint16_t>(*port);
  return endpoint;
}

Result<std::vector<Endpoint>> parse_endpoints(std::string_view text) {
  std::vector<Endpoint> endpoints;
  for (const auto part : split(text, ',')) {
    const auto endpoint = parse_endpoint(part);
    if (!endpoint || endpoint->port == 0 || endpoints.size() == kMaxEtcdMembers)
      return expected(
          fmt::format("up to {} members of etcd, HOST[:PORT],HOST[:PORT],…", kMaxEtcdMembers));
    endpoints.push_back(*endpoint);
  }
  return endpoints;
}

Result<agent::HttpPlan> parse_http_plan(std::string_view text) {
  const auto error = expected(
      "PORT, :PORT, ADDRESS:PORT or [V6]:PORT with a numeric address and a port up to 65535");
  text = trimmed(text);
  const auto colon = text.rfind(':');
  const auto port = parse_int(text.substr(colon == std::string_view::npos ? 0 : colon + 1));
  if (!port || *port < 0 || *port > kMaxPort) return error;
  agent::HttpPlan plan{.port = static_cast<std::uint16_t>(*port)};
  if (colon == std::string_view::npos || colon == 0) return plan;
  const auto endpoint = parse_endpoint(text);
  if (!endpoint || !is_numeric_address(endpoint->host)) return error;
  plan.address = endpoint->host;
  return plan;
}

Result<std::set<int>> parse_ranks(std::string_view text) {
  std::set<int> ranks;
  if (text.empty()) return ranks;
  for (const auto part : split(text, ',')) {
    const auto rank = parse_int(trimmed(part));
    if (!rank) return expected("local ranks, such as 0,2");
    ranks.insert(*rank);
  }
  return ranks;
}

std::vector<std::string> parse_texts(std::string_view text) {
  std::vector<std::string> texts(1);
  while (!text.empty()) {
    const bool literal = text.starts_with(",,");
    if (text.front() == ',' && !literal) {
      texts.emplace_back();
    } else {
      texts.back() += text.front();
    }
    text.remove_prefix(literal ? 2 : 1);
  }
  return texts;
}

Result<std::chrono::milliseconds> parse_seconds(std::string_view text) {
  const auto value = parse_number(text);
  if (!value || *value < 0 || *value > kMaxSeconds) return expected("seconds from 0, such as 0.5");
  return std::chrono::milliseconds(std::llround(*value * 1e3));
}

Result<Backoff> parse_backoff(std::string_view text) {
  const auto error = expected("seconds BASE or BASE:MAX with 0 <= BASE <= MAX, such as 1:60");
  const auto parts = split(text, ':');
  const auto base = parse_seconds(parts.front());
  if (!base || parts.size() > 2) return error;
  Backoff backoff{*base, std::max<std::chrono::milliseconds>(*base, kDefaultBackoffMax)};
  if (parts.size() == 1) return backoff;
  const auto max = parse_seconds(parts.back());
  if (!max || *max < *base) return error;
  backoff.max = *max;
  return backoff;
}

Result<RendezvousConf> parse_rendezvous_conf(std::string_view text) {
  RendezvousConf conf;
  text = trimmed(text);
  if (text.empty()) return conf;
  for (const auto pair : split(text, ',')) {
    const auto equals = pair.find('=');
    const auto key = trimmed(pair.substr(0, equals));
    const auto value =
        equals == std::string_view::npos ? std::string_view() : trimmed(pair.substr(equals + 1));
    if (key.empty() || value.empty()) return expected("KEY=VALUE,KEY=VALUE");
    const auto setter = conf_setters().find(key);
    if (setter == conf_setters().end()) {
      conf.unknown_keys.emplace_back(key);
    } else if (auto error = setter->second(conf, value)) {
      conf.bad_values.push_back({std::string(key), *error});
    } else {
      conf.known_keys.emplace_back(key);
    }
  }
  return conf;
}

}  // namespace ddprun::launcher
