// A standby of an engine program: a process that has come as far as bootstrap() and waits there
// until its agent lets it go. proto/standby.h has what is said over the connection. LibTorch
// is loaded by then, and no device is open.
#pragma once

#include "proto/worker_page.h"

namespace ddprun::worker {

// Says in `page` that standbys of this program can wait. In a standby (DDPRUN_HOOK) it then waits,
// and returns in a process that has the variables and the output of the worker that it becomes. It
// ends the process where that would not be what a cold start is: a second thread runs, a device is
// open, or a variable differs that has nothing to do with the attempt. Call it once, on the main
// thread, before the environment is read.
void wait_if_standby(WorkerPage& page);

}  // namespace ddprun::worker
