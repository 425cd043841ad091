#include "worker/startup/init_method/own_address.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace ddprun::worker {
namespace {

std::vector<std::string_view> words_of(std::string_view list) {
  std::vector<std::string_view> words;
  while (!list.empty()) {
    const auto end = std::min(list.find(','), list.size());
    if (end != 0) words.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return words;
}

// Such an address means something on its own link only, and only with the name of an interface
// here.
bool is_link_local(const sockaddr& address) {
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Returns the address as text; nothing if it is of another family, down, or of the link alone.
std::optional<std::string> address_text(const ifaddrs& one, int family) {
  const bool up = (one.ifa_flags & IFF_UP) != 0;
  if (!up || one.ifa_addr == nullptr || one.ifa_addr->sa_family != family) return std::nullopt;
  if (is_link_local(*one.ifa_addr)) return std::nullopt;
  const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::array<char, NI_MAXHOST> text{};
  const int why =
      ::getnameinfo(one.ifa_addr, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  if (why != 0) return std::nullopt;
  return text.data();
}

Error no_such_interface(const std::vector<InterfaceAddress>& all, const std::string& preference) {
  std::vector<std::string> names;
  for (const InterfaceAddress& one : all)
    if (std::ranges::find(names, one.interface) == names.end()) names.push_back(one.interface);
  return {ErrorCode::kInvalidArgument,
          fmt::format("GLOO_SOCKET_IFNAME={}: no such interface has an address; these have: {}",
                      preference, fmt::join(names, ", "))};
}

// `pid:[4026531836]`; empty where the kernel has no such namespaces.
std::string namespace_of(const char* kind) {
  std::error_code unknown;
  return std::filesystem::read_symlink(std::filesystem::path("/proc/self/ns") / kind, unknown)
      .string();
}

constexpr std::size_t kMostNameBytes = 64;  // HOST_NAME_MAX
constexpr std::size_t kMostIdBytes = 96;

}  // namespace

std::string as_word(std::string_view text, std::size_t most) {
  std::string word(text.substr(0, most));
  for (char& c : word)
    if (c <= ' ' || c > '~') c = '?';
  return word;
}

HostId this_host() {
  std::array<char, 256> name{};
  const bool known = ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0';
  std::string start;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), start);
  const std::string id = fmt::format("{}/{}/{}", start, namespace_of("pid"), namespace_of("net"));
  return {.name = as_word(known ? name.data() : "unknown", kMostNameBytes),
          .id = as_word(id, kMostIdBytes)};
}

std::optional<std::string> named_interfaces() {
  const char* names = std::getenv("GLOO_SOCKET_IFNAME");  // NOLINT(concurrency-mt-unsafe)
  return names == nullptr || *names == '\0' ? std::nullopt : std::optional<std::string>(names);
}

Result<std::string> choose_address(const std::vector<InterfaceAddress>& all,
                                   const AddressPreference& preference) {
  if (preference.interfaces) {
    for (const std::string_view name : words_of(*preference.interfaces)) {
      const auto found = std::ranges::find(all, name, &InterfaceAddress::interface);
      if (found != all.end()) return found->address;
    }
    return no_such_interface(all, *preference.interfaces);
  }
  const auto towards = std::ranges::find(all, preference.towards_store, &InterfaceAddress::address);
  const bool reaches = towards != all.end() && (preference.one_host || !towards->is_loopback);
  if (reaches) return towards->address;
  const auto outside = std::ranges::find(all, false, &InterfaceAddress::is_loopback);
  if (outside != all.end()) return outside->address;
  return Error(ErrorCode::kNotFound,
               "training over several hosts: this one has no address that others can reach, only "
               "loopback");
}

Result<std::vector<InterfaceAddress>> interface_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    return Error(ErrorCode::kSystem,
                 "read the addresses of this host: " + std::generic_category().message(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, ::freeifaddrs);
  std::vector<InterfaceAddress> all;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = list.get(); one != nullptr; one = one->ifa_next) {
      auto address = address_text(*one, family);
      if (!address) continue;
      all.push_back({.interface = one->ifa_name,
                     .address = std::move(*address),
                     .is_loopback = (one->ifa_flags & IFF_LOOPBACK) != 0});
    }
  }
  return all;
}

}  // namespace ddprun::worker
