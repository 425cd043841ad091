"""Stock PyTorch 2.11 fails a Gloo job at its exit now and then, under any launcher. This is for
tests that run such a job again.

A thread of ProcessGroupGloo frees a tensor of the last collective when the interpreter has just
ended. It cannot have the interpreter's lock for that, and is unwound through a destructor.
destroy_process_group() does not end the thread, so a script cannot avoid it.
"""

ABORT = "terminate called without an active exception"
RUNS_WITH_ABORTS = 5  # of one job


def aborted(code, err, abort_code=1):
    """Whether a job ended so. `abort_code` is its program's exit code then. It is 1 for a launcher,
    and another one for a launcher that aborts itself."""
    return code == abort_code and ABORT in err
