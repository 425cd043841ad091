// Chooses which of glibc's resolvers look up names of hosts and services. Called once, by main,
// before any other thread and before the first look-up.
#pragma once

namespace ddprun {

// Only those that are linked in: /etc/hosts and DNS. /etc/nsswitch.conf may name others (sss,
// mymachines, mDNS, systemd's). glibc would load them from shared libraries of the host's glibc,
// and a static program dies of that. Has no effect on workers.
void use_own_resolvers();

}  // namespace ddprun
