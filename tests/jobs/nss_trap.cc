// A source of host names for nsswitch.conf(5) that ends whatever program loads it: ddprun must not.
#include <cstdlib>

namespace {

struct Trap {
  Trap() { std::abort(); }
};
const Trap trap;

}  // namespace
