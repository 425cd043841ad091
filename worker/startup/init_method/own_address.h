// The identity of this host, and the address at which the ranks of other hosts reach this one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun::worker {

// Equal in two processes that share memory and loopback: one host, one container. Words of
// printable ASCII.
struct HostId {
  std::string name;  // gethostname(2)
  // The kernel's start, and the namespaces of processes and of the network: hosts may have the same
  // name.
  std::string id;

  bool operator==(const HostId&) const = default;
};

HostId this_host();

// The first `most` bytes, with a question mark for each that is no printable ASCII, or a blank.
std::string as_word(std::string_view text, std::size_t most);

// GLOO_SOCKET_IFNAME. No other thread may change the environment meanwhile.
std::optional<std::string> named_interfaces();

// An address that an interface has.
struct InterfaceAddress {
  std::string interface;
  std::string address;  // numeric
  bool is_loopback = false;
};

struct AddressPreference {
  // The value of GLOO_SOCKET_IFNAME, which people have set for PyTorch: names of interfaces,
  // separated by commas.
  std::optional<std::string> interfaces;
  // The own end of the connection to the store: it reaches the master, so it mostly reaches all.
  std::string towards_store;
  // The master's address is loopback on all ranks. Then all of them are on this host.
  bool one_host = false;
};

// Returns the first address of the interfaces that are named; else the one towards the store. If
// that is loopback and not all ranks are here, it is the first that is not. Pure. kInvalidArgument
// where no such interface has an address; kNotFound where there is loopback only.
Result<std::string> choose_address(const std::vector<InterfaceAddress>& all,
                                   const AddressPreference& preference);

// Those of this host that are up, IPv4 first, without those of one link only. kSystem where the
// kernel does not tell.
Result<std::vector<InterfaceAddress>> interface_addresses();

}  // namespace ddprun::worker
