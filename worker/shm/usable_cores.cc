#include "worker/shm/usable_cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

namespace ddprun::worker {
namespace {

// As many as the kernel may have. With a smaller mask the call fails on a large host (sched_getaffinity(2), EINVAL).
constexpr int kMaxCores = 8192;
using Mask = std::array<cpu_set_t, kMaxCores / CPU_SETSIZE>;

std::optional<Mask> mask_of(pid_t process) {
  Mask mask{};
  if (::sched_getaffinity(process, sizeof mask, mask.data()) != 0) return std::nullopt;
  return mask;
}

}  // namespace

int usable_cores() {
  const auto mask = mask_of(0);
  return mask ? std::max(CPU_COUNT_S(sizeof *mask, mask->data()), 1) : 1;
}

bool has_other_cores_than_parent() {
  const auto mine = mask_of(0);
  const auto parents = mask_of(::getppid());
  return mine && parents && CPU_EQUAL_S(sizeof *mine, mine->data(), parents->data()) == 0;
}

}  // namespace ddprun::worker
