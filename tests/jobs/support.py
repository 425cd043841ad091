"""Drives the program `ddprun` as a user would, for tests. Only the standard library.

DDPRUN names the program (default build/bin/ddprun). Every job gets a marker in its environment. So
a test can see whether any process of it is left, whatever that process did to hide.
"""

import contextlib
import functools
import mmap
import os
import pathlib
import pty
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

from machine import DEADLINE, each_process_with, environment_of, listening_inodes, state_of, wait_until

# Tests that were started in the background or with nohup ignore these. ddprun would keep them
# ignored.
for signo in signal.SIGINT, signal.SIGQUIT, signal.SIGHUP:
    if signal.getsignal(signo) == signal.SIG_IGN:
        signal.signal(signo, signal.SIG_DFL)

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A process that is there then stays for good. A busy machine may need seconds to end one.
GONE_S = 20
# Variables of Python that no job of a test has. Unbuffered, print() writes in pieces, and those of
# two ranks mix.
OF_A_SHELL = "PYTHON_EXEC", "PYTHONUNBUFFERED"
DDPRUN = os.environ.get("DDPRUN", str(ROOT / "build" / "bin" / "ddprun"))
MARKER = "DDPRUN_TEST_MARKER"
# Prints the variables that torchrun sets, one NAME=value each, on one line, then its arguments.
PRINT_ENV = """#!/bin/sh
for name in RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE \
MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS \
TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE TORCH_NCCL_ASYNC_ERROR_HANDLING OMP_NUM_THREADS DDPRUN_TOKEN
do eval "test -n \\"\\${$name+set}\\" && line=\\"\\${line}$name=\\${$name};\\""; done
for argument in "$@"; do line="${line}ARG=$argument;"; done
printf '%s\\n' "$line"
"""

# Workers for JobTest.worker(); {fifo} in them is a named pipe to which they say their rank. The
# first sleeps until it is told to end, and does so well. The second ignores the signals that end a
# job. The third says that it heard SIGTERM, and goes on. `wait` returns at a trapped signal; a
# foreground command would hold it back. The last one sleeps, and dies of what it is told.
SLEEPER = """#!/bin/sh
trap 'exit 0' TERM
echo $RANK > {fifo}
while :; do sleep 1000 & wait; done
"""
DEAF = SLEEPER.replace("trap 'exit 0' TERM", "trap '' TERM INT HUP QUIT")
HEARING = SLEEPER.replace("trap 'exit 0' TERM", "trap 'echo $RANK > {fifo}' TERM")
WAITING = "#!/bin/sh\necho $RANK > {fifo}\nexec sleep 1000\n"
# Functions of Python workers that report to a folder, their first argument. The second one counts a
# step in the worker's page, as an optimizer's would be (proto/worker_page.h).
REPORTING = """
import json, os, time
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def report(told):
    place = f"{sys.argv[1]}/{os.environ['RANK']}.{attempt}"
    with open(place + ".tmp", "w") as file:
        json.dump(told, file)
    os.rename(place + ".tmp", place)
def count_a_step():
    if "DDPRUN_PAGE" in os.environ:
        import mmap
        offset, _, _, path = os.environ["DDPRUN_PAGE"].split(":", 3)
        with open(path, "r+b") as page:
            words = memoryview(mmap.mmap(page.fileno(), 0))[int(offset):int(offset) + 64].cast("Q")
        words[2] = time.monotonic_ns()
        words[0] = 1
"""
# Says one line on each stream.
SAY = "#!/bin/sh\necho out $RANK\necho err $RANK >&2\n"


def torch_python():
    """The interpreter of the repository's own virtual environment, if PyTorch is there."""
    python = ROOT / ".venv" / "bin" / "python"
    found = python.exists() and any((ROOT / ".venv").glob("lib/python3*/site-packages/torch"))
    return str(python) if found else None


@functools.cache
def sanitized():
    """Whether ddprun was built for a sanitizer, which takes time, memory and threads of its own."""
    with open(DDPRUN, "rb") as file:
        program = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return program.find(b"__asan_init") >= 0 or program.find(b"__tsan_init") >= 0


def with_variables(**variables):
    """This process's environment without what a developer's shell may have set, and with these."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("PET_", "TORCH", "OMP_", "DDPRUN_JOB", *OF_A_SHELL))}
    env["PYTHON_EXEC"] = sys.executable
    return env | variables


def told(what, seconds):
    """Prints what was measured, the median of several and their range; answers the median."""
    values = sorted(seconds)
    print(f"{what}: median {statistics.median(values) * 1e3:.1f} ms, "
          f"{values[0] * 1e3:.1f} to {values[-1] * 1e3:.1f} ms of {len(values)}", flush=True)
    return statistics.median(values)


def parse_env(line):
    """One line of PRINT_ENV as a dict; arguments under "ARGS"."""
    pairs = [item.split("=", 1) for item in line.strip().split(";") if item]
    values = {name: value for name, value in pairs if name != "ARG"}
    values["ARGS"] = [value for name, value in pairs if name == "ARG"]
    return values


class Job:
    """One running ddprun; with `program` another launcher, of which agent() and worker() know
    nothing."""

    def __init__(self, args, env=None, prefix=(), program=(DDPRUN,), **popen):
        self.marker = uuid.uuid4().hex
        full = dict(os.environ if env is None else env)
        if env is None:  # what a developer's shell may have set
            for name in "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", *OF_A_SHELL:
                full.pop(name, None)
        full[MARKER] = self.marker
        full.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
        # No test writes to the user's home.
        full.setdefault("XDG_CACHE_HOME", str(ROOT / "out" / "test_cache"))
        self.process = subprocess.Popen(
            [*prefix, *program, *map(str, args)], env=full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, **popen)
        self.pid = self.process.pid

    def each_process(self):
        """Pids of this job's live processes, by the marker in their environment, each as soon as it
        is seen."""
        return each_process_with(f"{MARKER}={self.marker}")

    def processes(self):
        """Pids of every live process of this job. Zombies do not count."""
        return list(self.each_process())

    def worker(self, rank):
        """Pid of the agent's child that has this global rank; None when there is none (now)."""
        try:
            children = self.children_of(self.agent())
        except (FileNotFoundError, ProcessLookupError, IndexError):
            return None
        for pid in children:
            # In the midst of an exec there are no variables to read.
            wait_until(lambda: any(environment_of(pid)) or state_of(pid) in ("Z", None), "an exec")
            if f"RANK={rank}".encode() in environment_of(pid):
                return pid
        return None

    def standbys(self):
        """Pids of the standbys, whether they wait or not."""
        agent = self.agent()
        return [pid for pid in self.children_of(agent) if f"DDPRUN_HOOK={agent}:3".encode() in environment_of(pid)]

    def agent(self):
        """Pid of the agent, the guardian's one child."""
        return self.children_of(self.pid)[0]

    def listens(self, port):
        """True if the job's agent listens on the port."""
        sockets = {f"socket:[{inode}]" for inode in listening_inodes(port)}
        try:
            return any(os.readlink(fd) in sockets for fd in pathlib.Path(f"/proc/{self.agent()}/fd").iterdir())
        except (FileNotFoundError, ProcessLookupError, IndexError):
            return False

    @staticmethod
    def children_of(pid):
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]

    @staticmethod
    def has_children(pid):
        """False also for a process that is gone."""
        try:
            return bool(Job.children_of(pid))
        except (FileNotFoundError, ProcessLookupError):
            return False

    def finish(self, timeout=None):
        """Waits for the end; (exit code, stdout, stderr). Without a timeout of its own, what lives
        is told at the deadline."""
        try:
            out, err = self.process.communicate(timeout=timeout or DEADLINE)
        except subprocess.TimeoutExpired as late:
            if timeout:
                raise
            raise AssertionError(f"{late}\n{self.what_lives()}") from None
        return self.process.returncode, out, err

    def what_lives(self):
        """The job's processes with what each waits in, then what ddprun said. Kills them."""
        seen = []
        for pid in {self.pid, *self.processes()}:
            try:
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
                wanted = r"(?m)^(Name|State|PPid|SigPnd|ShdPnd|SigBlk|SigIgn|SigCgt):\t(.*)$"
                facts = " ".join(f"{name}={value}" for name, value in re.findall(wanted, status))
                waits = pathlib.Path(f"/proc/{pid}/wchan").read_text()
                seen.append(f"pid {pid}: {facts} in {waits}")
            except (FileNotFoundError, ProcessLookupError):
                continue
        self.kill_whole()
        self.process.kill()
        out, err = self.process.communicate()
        return "\n".join([*seen, f"stdout: {out}", f"stderr: {err}"])

    def wait_gone(self, deadline=GONE_S):
        wait_until(lambda: not self.processes(), f"no process of the job left, still there: {self.processes()}", deadline)

    def kill_whole(self):
        """Kills guardian, agent and workers in one moment. All are stopped first. A process that is
        stopped starts no other one, and tells nobody that another one was killed."""
        stopped = set()
        while others := set(self.processes()) - stopped:
            stopped |= others
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        for pid in stopped.union(self.processes()):  # also what was still being forked
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self):
        """Cleans up after a failed test; no-op for a job that ended."""
        self.kill_whole()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Fifo:
    """A named pipe in which workers say that they are there."""

    def __init__(self, folder, name="ready"):
        self.path = os.path.join(folder, name)
        os.mkfifo(self.path)
        # For reading and writing: no end of file and no writer that waits or breaks, however
        # workers come and go.
        self.file = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.rest = b""

    def lines(self, count, deadline=None):
        """The next `count` lines; waits for them."""
        end = time.monotonic() + (deadline or DEADLINE)
        while self.rest.count(b"\n") < count:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.file], [], [], left)[0]:
                got = self.rest.count(b"\n")
                raise AssertionError(f"waited in vain for {count} lines in {self.path}, got {got}")
            self.rest += os.read(self.file, 1 << 16)
        *lines, self.rest = self.rest.split(b"\n", count)
        return [line.decode() for line in lines]

    def lines_so_far(self):
        """The lines that nobody has taken yet; waits for none."""
        while select.select([self.file], [], [], 0)[0]:
            self.rest += os.read(self.file, 1 << 16)
        return self.lines(self.rest.count(b"\n"))

    def close(self):
        os.close(self.file)
        os.unlink(self.path)


class JobTest(unittest.TestCase):
    """Gives each test a folder of its own and ends its jobs."""

    def setUp(self):
        self.fifos = {}
        folder = tempfile.TemporaryDirectory(prefix="ddprun_test_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def script(self, text, name="worker.sh"):
        path = self.folder / name
        # A launcher may be reading it: a file that is there already is not written again.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            path.chmod(0o755)
        return str(path)

    def start(self, *args, **options):
        job = Job(args, **options)
        self.addCleanup(job.end)
        return job

    def run_job(self, *args, timeout=None, **options):
        """Runs to the end; (exit code, stdout, stderr). Also checks that nothing is left."""
        job = self.start(*args, **options)
        result = job.finish(timeout)
        job.wait_gone()
        return result

    def on_a_terminal(self, *args, start=None):
        """The job, by `start` or start(), with a terminal as its stderr; and the terminal's other
        end."""
        leader, terminal = pty.openpty()
        self.addCleanup(os.close, leader)
        prefix = ("sh", "-c", f'exec "$@" 2>/proc/{os.getpid()}/fd/{terminal}', "sh")
        job = (start or self.start)(*args, prefix=prefix)
        self.addCleanup(os.close, terminal)
        return job, leader

    def read_until(self, source, wanted, times=1):
        """Returns the bytes of a terminal or a pipe, until `wanted` was in them so many times."""
        shown = b""
        while shown.count(wanted.encode()) < times:
            readable, _, _ = select.select([source], [], [], DEADLINE)
            self.assertTrue(readable, f"{wanted} not in: {shown.decode()}")
            part = os.read(source, 1000)
            self.assertTrue(part, f"{wanted} not in all of: {shown.decode()}")
            shown += part
        return shown.decode()

    def stop(self, job, signo=signal.SIGTERM):
        """Ends the job from outside; (exit code, stdout, stderr, seconds until it was over)."""
        begin = time.monotonic()
        job.process.send_signal(signo)
        code, out, err = job.finish()
        seconds = time.monotonic() - begin
        job.wait_gone()
        return code, out, err, seconds

    def fifo(self, name="ready"):
        """A named pipe for workers to say that they are there; read_lines() waits for them."""
        path = self.folder / name
        self.fifos[path] = Fifo(self.folder, name)
        self.addCleanup(self.fifos[path].close)
        return path

    def read_lines(self, fifo, count):
        """The next `count` lines that workers wrote to the fifo; waits for them."""
        return self.fifos[fifo].lines(count)

    @functools.cached_property
    def ready(self):
        """The named pipe of most tests, made when it is first asked for."""
        return self.fifo("ready")

    def worker(self, text, name="worker.sh"):
        """A script; {fifo} in it is the named pipe that heard() reads."""
        return self.script(text.replace("{fifo}", str(self.ready)), name)

    def heard(self, count):
        """The next lines that workers wrote to their named pipe; waits for them."""
        return self.read_lines(self.ready, count)

    def envs(self, *args, **options):
        """The variables of each worker of a job that runs PRINT_ENV, by rank, and its stderr."""
        code, out, err = self.run_job(*args, **options)
        self.assertEqual(code, 0, err)
        return sorted(map(parse_env, out.splitlines()), key=lambda one: int(one["RANK"])), err

    def env_of_one(self, *args, **options):
        (env,), _ = self.envs(*args, **options)
        return env

    def refused(self, code, wanted, *args, **options):
        """A job that does not start: this exit code, and one line with all the words that are
        wanted."""
        got, out, err = self.run_job(*args, **{"env": with_variables(), **options})
        self.assertEqual((got, out), (code, ""), err)
        self.assertEqual(len(err.splitlines()), 1, err)
        for words in wanted:
            self.assertIn(words, err)

    def cause(self, err):
        """The part of the report that tells of the root cause."""
        self.assertIn("Root Cause (first observed failure):", err)
        return err.partition("Root Cause (first observed failure):")[2]


class LoggedTest(JobTest):
    """Jobs with a folder of logs."""

    def setUp(self):
        super().setUp()
        self.logs = self.folder / "logs"

    def attempt(self, number=0):
        (job,) = self.logs.glob("*_*")
        return job / f"attempt_{number}"

    def worker_file(self, rank, name, attempt=0):
        return (self.attempt(attempt) / str(rank) / name).read_text()

    def files(self):
        """The files of the first attempt by their paths below its folder, with their text."""
        return {str(path.relative_to(self.attempt())): path.read_text() for path in self.attempt().rglob("*.log")}

    def say(self, *flags, text=SAY, **options):
        """A job that ends well; what it says on stdout and stderr."""
        # Else there is torchrun's line about it.
        options.setdefault("env", with_variables(OMP_NUM_THREADS="1"))
        code, out, err = self.run_job("--log-dir", self.logs, *flags, self.script(text), **options)
        self.assertEqual(code, 0, err)
        return out, err


def main():
    """Runs the tests named on the command line. Exit code 77 when all were skipped, so that CTest
    counts them as such."""
    result = unittest.main(verbosity=2, exit=False).result
    skipped = result.testsRun > 0 and len(result.skipped) == result.testsRun
    for test, reason in result.skipped:
        print(f"skipped: {test.id()}: {reason}")
    sys.exit(77 if skipped else not result.wasSuccessful())
