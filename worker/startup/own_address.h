// At which address of this host the ranks of other hosts reach this one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/result.h"

namespace ddprun::worker {

// An address that an interface has.
struct InterfaceAddress {
  std::string interface;
  std::string address;  // numeric
  bool is_loopback = false;
};

struct AddressWish {
  // Of GLOO_SOCKET_IFNAME, which people have set for PyTorch: names of interfaces, separated by commas.
  std::optional<std::string> interfaces;
  // The own end of the connection to the store: it reaches the master, so it mostly reaches all.
  std::string towards_store;
  // The master's address is loopback on all ranks. Then all of them are on this host.
  bool one_host = false;
};

// The first address of the interfaces that are named; else the one towards the store; else, where that is
// loopback and not all ranks are here, the first that is not. Pure. kInvalidArgument where no such
// interface has an address; kNotFound where there is loopback only.
Result<std::string> choose_address(const std::vector<InterfaceAddress>& all,
                                   const AddressWish& wish);

// Those of this host that are up, IPv4 first, without those of one link only. kSystem where the kernel
// does not tell.
Result<std::vector<InterfaceAddress>> interface_addresses();

}  // namespace ddprun::worker
