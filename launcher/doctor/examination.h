// The findings about one node: said to people, and compared by the others. Two processes of ddprun
// hand it over as bytes. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/doctor/findings.h"
#include "launcher/doctor/pairs.h"

namespace ddprun::launcher {

struct Examination {
  Peer self{};  // host name, torch and driver
  Findings findings{};
};

// CBOR: names and paths need not be UTF-8.
std::string write_examination(const Examination& examination);

// Nothing if it is not whole.
std::optional<Examination> read_examination(std::string_view bytes);

}  // namespace ddprun::launcher
