// A standby of an engine program. This process has come as far as bootstrap() and waits there until
// its agent lets it go. proto/standby.h has what is said over the connection. LibTorch is loaded by
// then, and no device is open.
#pragma once

#include "proto/worker_page.h"

namespace ddprun::worker {

// Says in `page` that standbys of this program can wait. In a standby (DDPRUN_HOOK) it then waits.
// It returns in a process that has the variables and the output of the worker that it becomes. It
// ends the process if that would not be as a cold start is. Then a second thread runs, or a device
// is open. Or a variable differs that has nothing to do with the attempt. Call it once, on the main
// thread, before the environment is read.
void wait_if_standby(WorkerPage& page);

}  // namespace ddprun::worker
