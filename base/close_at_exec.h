// Keeps descriptors from the program that a child becomes. For the time between fork and exec:
// async-signal-safe (signal-safety(7)), if has_call() was asked before the fork.
#pragma once

namespace ddprun {

// Marks every open descriptor from `first` on close-on-exec. Those stay open until the exec.
void close_at_exec(int first);

}  // namespace ddprun
