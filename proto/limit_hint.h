// What a user can do when the kernel refuses something because of a limit. Any thread.
#pragma once

#include <string>

namespace ddprun {

// The text of an errno. Behind it the limit that is to be raised, if the errno comes of one: open
// files (EMFILE, ENFILE), processes and threads (EAGAIN, of fork() and the like), memory (ENOMEM).
std::string describe_errno(int error);

// The hint alone; empty: the errno comes of no limit.
std::string limit_hint(int error);

}  // namespace ddprun
