"""A worker that does one step and then waits: stepping_worker.py FIFO GATE.

It writes "ATTEMPT RANK start PID" to FIFO, and counts a step in its page as an optimizer's would
be. It waits until nobody has an exclusive lock on GATE, writes "ATTEMPT RANK done PID" and ends
well.
"""

import fcntl
import mmap
import os
import sys
import time

import bisect  # noqa: F401  something for a standby to import


def say(word):
    """In one write, which no other one can get into."""
    attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    os.write(fifo, f"{attempt} {rank} {word} {os.getpid()}\n".encode())


def count_step():
    """See proto/worker_page.h."""
    offset, _, _, path = os.environ["DDPRUN_PAGE"].split(":", 3)
    with open(path, "r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 0))[int(offset):int(offset) + 64].cast("Q")
    words[2] = time.monotonic_ns()
    words[0] = 1


fifo = os.open(sys.argv[1], os.O_WRONLY)
say("start")
count_step()
with open(sys.argv[2]) as gate:
    fcntl.flock(gate, fcntl.LOCK_SH)
say("done")
