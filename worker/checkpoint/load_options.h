// How the keys of a state_dict may differ from a module's. Plain values.
#pragma once

#include <cstdint>
#include <string_view>

namespace ddprun::worker {

// Python's DistributedDataParallel puts "module." before each key; a plain module does not.
enum class PrefixChange : std::uint8_t {
  kNone,
  kStripped,  // from the file's keys
  kAdded,     // to them
};
// For people: "'module.' was stripped from its keys"; empty for kNone.
std::string_view describe(PrefixChange change);

struct LoadOptions {
  bool strict_prefix = false;  // keys must be the module's, as they are
};

}  // namespace ddprun::worker
