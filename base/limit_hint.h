// Tells a user which limit to raise when the kernel refuses something. Any thread.
#pragma once

#include <atomic>
#include <string>

namespace ddprun {

// The text of an errno. Behind it the limit that is to be raised, if the errno comes of one. Limits
// are open files (EMFILE, ENFILE) and memory (ENOMEM). Processes and threads are others (EAGAIN, of
// fork() and the like). So is room on a disk (ENOSPC, EDQUOT, EFBIG). Every message that shows an
// errno shows it with this.
std::string describe_errno(int error);

// Returns the hint alone. Empty if the errno comes of no limit.
std::string limit_hint(int error);

// Returns whether this process may map only so much memory (`ulimit -v`).
bool has_memory_limit();

// From now on this process ends with one line and exit code 1 if memory runs out. It does so, too,
// if an exception escapes that tells of such an errno. With other exceptions it aborts as ever.
// `said`: it is set first, and then the process kills itself, for a parent that cleans up. Call it
// once for each process.
void end_where_a_limit_is_hit(const std::string& called, std::atomic<bool>* said = nullptr);

}  // namespace ddprun
