"""What the acceptance cases share beside tests/jobs/support.py. Only the standard library.

A case's number is in the name of its test (test_case_07_…). cases_index_test.py sees to it that
every number has one, here or in tests/jobs.
"""

import functools
import mmap
import os
import pathlib
import re
import signal
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "jobs"))

from support import (  # noqa: E402, F401
    DDPRUN, DEADLINE, DEAF, PRINT_ENV, ROOT, SLEEPER, Job, JobTest, free_port, main, parse_env,
    state_of, wait_until)


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

    def worker(self, text, name="worker.sh"):
        """A script; {fifo} in it is the named pipe that self.heard() reads."""
        return self.script(text.replace("{fifo}", str(self.ready)), name)

    def heard(self, count):
        """The next lines that workers wrote to their named pipe; waits for them."""
        return self.read_lines(self.ready, count)

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
