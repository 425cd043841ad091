// The error of a node that wanted to host, found the endpoint's port taken, and reaches no host.
// Any thread.
#pragma once

#include <string>

#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// Mostly another agent has the port. But if another program has it, nobody ever answers. A plain
// "nobody answered" would lead the user to the network. So the error then also says that the port
// was taken: `refusal`. The result hands all messages on to `handler`.
rendezvous::Session::MessageHandler telling_who_has_the_port(
    rendezvous::Session::MessageHandler handler, std::string refusal);

}  // namespace ddprun::agent
