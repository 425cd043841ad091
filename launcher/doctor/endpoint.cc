#include "launcher/doctor/endpoint.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "base/duration.h"
#include "launcher/doctor/port_owner.h"

namespace ddprun::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Addresses addresses_of(const std::string& name, std::uint16_t port) {
  const addrinfo wanted{.ai_socktype = SOCK_STREAM};
  addrinfo* list = nullptr;
  const std::string service = std::to_string(port);
  if (::getaddrinfo(name.c_str(), service.c_str(), &wanted, &list) != 0) list = nullptr;
  return {list, [](addrinfo* all) {
            if (all != nullptr) ::freeaddrinfo(all);
          }};
}

LookUp as_text(const addrinfo* list, Clock::time_point begin) {
  LookUp found;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(one->ai_addr, one->ai_addrlen, text.data(), text.size(), nullptr, 0,
                      NI_NUMERICHOST) == 0)
      found.addresses.emplace_back(text.data());
  }
  found.seconds = in_seconds(Clock::now() - begin);
  return found;
}

// Only a node's own address can be bound (bind(2), EADDRNOTAVAIL).
bool is_own(const addrinfo& address) {
  const int fd = ::socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_storage any_port{};
  std::memcpy(&any_port, address.ai_addr, address.ai_addrlen);
  // The port is at the same place in both families.
  reinterpret_cast<sockaddr_in&>(any_port).sin_port = 0;
  const bool own =
      ::bind(fd, reinterpret_cast<const sockaddr*>(&any_port), address.ai_addrlen) == 0;
  ::close(fd);
  return own;
}

// 0, or why there is no connection; ETIMEDOUT: nothing was heard by `end`.
int connect_by(const addrinfo& address, Clock::time_point end) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  int error = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
    const int polled = ::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
    socklen_t size = sizeof(error);
    if (polled <= 0) {
      error = ETIMEDOUT;
    } else {
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  ::close(fd);
  return error;
}

void probe(const addrinfo* list, Clock::time_point end, EndpointFacts& facts) {
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    const int error = connect_by(*one, end);
    if (error == 0) {
      facts.probe = ProbeResult::kAnswered;
      return;
    }
    if (error == ECONNREFUSED) facts.probe = ProbeResult::kRefused;
    if (facts.probe == ProbeResult::kRefused) continue;
    facts.probe = ProbeResult::kSilent;
    facts.error = error == ETIMEDOUT ? "no answer" : std::generic_category().message(error);
  }
}

}  // namespace

LookUp look_up(const std::string& name) {
  const auto begin = Clock::now();
  const Addresses list = addresses_of(name, 0);
  return as_text(list.get(), begin);
}

EndpointFacts gather_endpoint(const std::string& host, std::uint16_t port, Clock::time_point end) {
  const auto begin = Clock::now();
  const Addresses list = addresses_of(host, port);
  EndpointFacts facts{.found = as_text(list.get(), begin)};
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next)
    facts.is_here = facts.is_here || is_own(*one);
  if (port == 0) return facts;
  if (facts.is_here) {
    facts.port_owner = port_owner(port);
  } else {
    probe(list.get(), std::min(end, Clock::now() + kProbeAnswerLimit), facts);
  }
  return facts;
}

}  // namespace ddprun::launcher
