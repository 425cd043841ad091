#include "base/net/resolvers.h"

#include <nss.h>

namespace ddprun {

// nss.h of glibc 2.36. The names are those of /etc/nsswitch.conf (nsswitch.conf(5)); since 2.34
// `files` and `dns` are part of libc itself. A failure leaves the host's own setting, and there is
// nothing better to be done.
void use_own_resolvers() {
  ::__nss_configure_lookup("hosts", "files dns");
  ::__nss_configure_lookup("services", "files");
}

}  // namespace ddprun
