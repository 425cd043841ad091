"""The common parts of the campaigns: the programs, events with deadlines, tables. Only the standard
library.

A campaign is one experiment done many times, by hand: tests/campaigns/NAME [--help]. It prints one
table, and closes with one line that says whether all went well. It exits with 1 if it did not. It
exits with 77 if it could not be done here (the last line says why). DDPRUN names the program under
test (default build/bin/ddprun); the workers lie beside it.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import uuid

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "jobs"))

from machine import (DEADLINE, PAUSE_S, environment_of, free_port, processes_with,  # noqa: E402, F401
                     state_of, wait_until)
from support import DDPRUN, ROOT, Fifo, Job  # noqa: E402, F401

SKIPPED = 77  # as CTest is told
VENV = ROOT / ".venv" / "bin"
# In the environment of all that a campaign starts, so that one look finds what is left of any job.
MARKER = "DDPRUN_CAMPAIGN"
# How one experiment of many may go wrong in a way that nobody thought of; the others go on.
MISHAPS = (AssertionError, IndexError, OSError, subprocess.TimeoutExpired)


def worker(name):
    """The path of a worker of the campaigns."""
    path = pathlib.Path(DDPRUN).parent / name
    if not os.access(path, os.X_OK):
        sys.exit(f"{path} is not there; ./quickstart builds it")
    return str(path)


def begin():
    """For main(): checks for the program and marks all that is started from here on. A process that
    is told to end cleans up first."""
    if not os.access(DDPRUN, os.X_OK):
        sys.exit(f"{DDPRUN} is not there; ./quickstart builds it")
    os.environ[MARKER] = uuid.uuid4().hex
    for signo in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        signal.signal(signo, lambda *_: sys.exit(1))


def skip(reason):
    print(reason)
    sys.exit(SKIPPED)


def marked_processes():
    """Pids of whatever lives of this campaign's jobs."""
    return processes_with(f"{MARKER}={os.environ[MARKER]}")


def gone_after(job, since, limit_s):
    """(seconds from `since` until nothing of the job was left, pids that were left at the limit).

    One that forks while /proc is read may be in no list, so nothing must be seen twice.
    """
    end = since + limit_s
    while True:
        left = job.processes()
        now = time.monotonic()
        if not left and not job.processes():
            return now - since, []
        if now > end and left:
            return now - since, left
        time.sleep(PAUSE_S)


def identity_of(job):
    """Returns the text in the names of all that the job makes: pid and start time
    (proc_pid_stat(5), field 22)."""
    with open(f"/proc/{job.pid}/stat") as file:
        return f"-{job.pid}-{file.read().rpartition(')')[2].split()[19]}-"


def traces_of(identity):
    """Returns such names that are left in /dev/shm, and of cgroups."""
    names = os.listdir("/dev/shm")
    names += [name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders]
    return [name for name in names if identity in name]


def end_all(job):
    """Cleans up after a failure, also what forks without end."""
    while job.processes():
        job.end()
    job.end()


def folder():
    """A temporary folder that is also TMPDIR of all that is started while it exists."""
    made = tempfile.TemporaryDirectory(prefix="ddprun_campaign_")
    os.environ["TMPDIR"] = made.name
    return made


def print_table(head, rows):
    """Columns as wide as their widest cell; numbers to the right."""
    cells = [head, *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    numeric = [all(row[column][:1].isdigit() for row in cells[1:]) for column in range(len(head))]
    for row in cells:
        print("  ".join(cell.rjust(width) if right else cell.ljust(width)
                        for cell, width, right in zip(row, widths, numeric)).rstrip())
    print(flush=True)


def progress(text):
    """One line, rewritten; nothing where nobody looks at a terminal."""
    if sys.stderr.isatty():
        print(f"\r{text:<60}\r{text}", end="", file=sys.stderr, flush=True)


def close(failures, summary):
    """The closing line, after each failure's own; exits."""
    progress("")
    for failure in failures:
        print(f"FAILED  {failure}")
    print(f"{len(failures)} failed: {summary}" if failures else summary)
    sys.exit(1 if failures else 0)
