#include "rendezvous/trust/tls_channels.h"

#include <openssl/ssl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace ddprun::rendezvous {
namespace {

constexpr std::string_view kLabel = "EXPORTER-ddprun-channel";

struct Channel {
  ChannelMark number = 0;
  std::string name;
  bool is_host = false;
};

struct Channels {
  std::mutex mutex;
  ChannelMark next = 0;
  std::map<const SSL*, Channel> all;
  std::unordered_multiset<std::string> hosts;  // names of those that are a host's
};

// Never destroyed: threads of gRPC may end connections while the process ends.
Channels& channels() {
  static auto* const one = new Channels;
  return *one;
}

void forget(Channels& known, const SSL* connection) {
  const auto found = known.all.find(connection);
  if (found == known.all.end()) return;
  if (found->second.is_host) known.hosts.erase(known.hosts.find(found->second.name));
  known.all.erase(found);
}

// A message of a handshake. With the client's Finished both sides have the keys of the channel.
// NOLINTNEXTLINE(readability-function-size): OpenSSL says which parameters
void message_seen(int is_sent, int /*version*/, int content, const void* bytes, std::size_t size,
                  SSL* connection, void* /*argument*/) {
  const bool is_host = SSL_is_server(connection) == 1;
  const bool is_finished = content == SSL3_RT_HANDSHAKE && size > 0 &&
                           *static_cast<const unsigned char*>(bytes) == SSL3_MT_FINISHED;
  if (!is_finished || (is_sent == 1) == is_host) return;
  std::string name(kChannelBytes, '\0');
  if (::SSL_export_keying_material(connection, reinterpret_cast<unsigned char*>(name.data()),
                                   name.size(), kLabel.data(), kLabel.size(), nullptr, 0, 0) != 1)
    return;
  Channels& known = channels();
  const std::lock_guard lock(known.mutex);
  forget(known, connection);
  if (is_host) known.hosts.insert(name);
  known.all[connection] = {known.next++, std::move(name), is_host};
}

}  // namespace

ChannelMark mark_channels() {
  const std::lock_guard lock(channels().mutex);
  return channels().next;
}

std::vector<std::string> client_channels(ChannelMark mark, bool is_tls) {
  if (!is_tls) return {};
  Channels& known = channels();
  const std::lock_guard lock(known.mutex);
  std::vector<std::pair<ChannelMark, std::string>> found;
  for (const auto& [connection, channel] : known.all)
    if (!channel.is_host && channel.number >= mark)
      found.emplace_back(channel.number, channel.name);
  std::ranges::sort(found);
  // If there are many, those in between go. The host may not know the newest ones yet. It learns of
  // a channel when it has read the last message of the handshake.
  constexpr auto kHalf = static_cast<std::ptrdiff_t>(kMostChannels / 2);
  if (found.size() > kMostChannels) found.erase(found.begin() + kHalf, found.end() - kHalf);
  std::vector<std::string> names;
  names.reserve(found.size());
  for (auto& [number, name] : found) names.push_back(std::move(name));
  return names;
}

bool has_host_channel(const std::vector<std::string>& names) {
  Channels& known = channels();
  const std::lock_guard lock(known.mutex);
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return known.hosts.contains(name); });
}

void watch_channel(SSL* connection) { SSL_set_msg_callback(connection, message_seen); }

void forget_channel(const SSL* connection) {
  const std::lock_guard lock(channels().mutex);
  forget(channels(), connection);
}

}  // namespace ddprun::rendezvous
