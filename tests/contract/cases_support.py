"""What the acceptance cases share beside tests/jobs/support.py. Only the standard library.

A case's number is in the name of its test (test_case_07_…). cases_index_test.py sees to it that
every number has one, here or in tests/jobs.
"""

import functools
import mmap
import os
import pathlib
import re
import select
import signal
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "jobs"))

from support import (  # noqa: E402, F401
    DDPRUN, DEADLINE, PRINT_ENV, ROOT, Job, JobTest, free_port, main, parse_env, wait_until)


# Sleeps until it is told to end, and does so well; says its rank first.
SLEEPER = """#!/bin/sh
trap 'exit 0' TERM
echo $RANK > {fifo}
while :; do sleep 1000 & wait; done
"""
# Ignores what ends a job; says its rank first.
DEAF = """#!/bin/sh
trap '' TERM INT HUP QUIT
echo $RANK > {fifo}
while :; do sleep 1000; done
"""


def torch_python():
    """The interpreter of the repository's own virtual environment, if PyTorch is there."""
    python = ROOT / ".venv" / "bin" / "python"
    found = python.exists() and any((ROOT / ".venv").glob("lib/python3*/site-packages/torch"))
    return str(python) if found else None


@functools.cache
def sanitized():
    """Whether ddprun was built for a sanitizer, which takes memory of its own."""
    with open(DDPRUN, "rb") as file:
        program = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return program.find(b"__asan_init") >= 0 or program.find(b"__tsan_init") >= 0


def with_variables(**variables):
    """This process's environment without what a developer's shell may have set, and with these."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("PET_", "TORCH", "OMP_", "DDPRUN_JOB", "PYTHON_EXEC"))}
    env["PYTHON_EXEC"] = sys.executable
    return env | variables


class CaseTest(JobTest):
    def setUp(self):
        super().setUp()
        self.ready = self.fifo()
        # Open for reading and writing as long as the test runs: no end of file and no writer that
        # waits or breaks, however workers come and go between two calls of heard().
        self.reader = os.open(self.ready, os.O_RDWR | os.O_CLOEXEC)
        self.addCleanup(os.close, self.reader)
        self.unread = b""

    def worker(self, text, name="worker.sh"):
        """A script; {fifo} in it is the named pipe that self.heard() reads."""
        return self.script(text.replace("{fifo}", str(self.ready)), name)

    def heard(self, count):
        """The next lines that workers wrote to their named pipe; waits for them."""
        while self.unread.count(b"\n") < count:
            readable, _, _ = select.select([self.reader], [], [], DEADLINE)
            self.assertTrue(readable, f"waited {DEADLINE} s in vain for {count} lines of workers; "
                                      f"there is {self.unread!r}")
            self.unread += os.read(self.reader, 4096)
        *lines, self.unread = self.unread.split(b"\n", count)
        return [line.decode() for line in lines]

    def envs(self, *args, **options):
        """The variables of each worker of a job that runs PRINT_ENV, by rank, and its stderr."""
        code, out, err = self.run_job(*args, **options)
        self.assertEqual(code, 0, err)
        lines = [parse_env(line) for line in out.splitlines()]
        return sorted(lines, key=lambda one: int(one["RANK"])), err

    def env_of_one(self, *args, **options):
        (env,), _ = self.envs(*args, **options)
        return env

    def cause(self, err):
        """The part of the report that tells of the root cause."""
        self.assertIn("Root Cause (first observed failure):", err)
        return err.partition("Root Cause (first observed failure):")[2]

    def stop(self, job, signo=signal.SIGTERM):
        """Ends the job from outside; (exit code, stdout, stderr, seconds until it was over)."""
        begin = time.monotonic()
        job.process.send_signal(signo)
        code, out, err = job.finish()
        seconds = time.monotonic() - begin
        job.wait_gone()
        return code, out, err, seconds


def told(what, seconds):
    """Prints what was measured: the median of several, and the range."""
    values = sorted(seconds)
    print(f"{what}: median {statistics.median(values) * 1e3:.1f} ms, "
          f"{values[0] * 1e3:.1f} to {values[-1] * 1e3:.1f} ms of {len(values)}", flush=True)
    return statistics.median(values)


def report_of(err):
    """The failure report's lines: from the one that says FAILED."""
    lines = err.splitlines()
    (title,) = [at for at, line in enumerate(lines) if re.search(r" FAILED$", line)]
    begin = title - 1 if title > 0 and set(lines[title - 1]) == {"="} else title
    return lines[begin:]
