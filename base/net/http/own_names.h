// Under which names a browser may ask this host. A page of a foreign site can be given an address
// of ours as its own (DNS rebinding). It then reads what we answer. But its requests name that
// site.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::http {

struct OwnNames {
  std::string host;                  // of this host, with or without its domain
  std::vector<std::string> domains;  // in which its name is looked up
};

// `host` and what /etc/resolv.conf says.
OwnNames own_names(std::string host);

// Returns whether `header`, the value of `Host`, names this host. It may name it by a numeric
// address, which no site can have as its name. It may also say localhost, or this host's name. It
// may also name it by that name within one of its domains, such as
// pod.service.namespace.svc.cluster.local. Empty if it names none, as HTTP/1.0 may; that is
// accepted.
bool is_own_name(std::string_view header, const OwnNames& own);

}  // namespace ddprun::http
