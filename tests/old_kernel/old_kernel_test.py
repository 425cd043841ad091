"""Jobs where the kernel is Linux 4.18, or where a filter refuses newer system calls.

DDPRUN_RUNS says how often the root cause is looked for (20). The program old_kernel stands for the
kernel; CMakeLists.txt runs other tests under it.
"""

import contextlib
import errno
import os
import pathlib
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "jobs"))

from machine import free_port, state_of, wait_until  # noqa: E402
from support import SLEEPER, WAITING, JobTest, main, with_variables  # noqa: E402

BIN = pathlib.Path(os.environ.get("DDPRUN_BIN", ROOT / "build" / "bin"))
OLD_KERNEL = str(BIN / "old_kernel")
ANSWERS = {"ENOSYS": (OLD_KERNEL,), "EPERM": (OLD_KERNEL, "--eperm")}
RUNS = int(os.environ.get("DDPRUN_RUNS", "20"))
# Prints the errno of each call; 0: it succeeded.
PROBE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def error(*arguments):
    return 0 if libc.syscall(*arguments) >= 0 else ctypes.get_errno()
pidfd_open, close_range, madvise, memfd_create, gettid = 434, 436, {numbers}
print(error(pidfd_open, os.getpid(), 0), error(close_range, 4000, 4001, 0), error(madvise, None, 0, 23),
      error(madvise, None, 0, 4), error(memfd_create, b"x", 9), error(memfd_create, b"x", 1), error(gettid))
"""
NUMBERS = {"x86_64": "28, 319, 186", "aarch64": "233, 279, 178"}


class Filter(JobTest):
    """The other tests rely on these answers."""

    def answers(self, *prefix):
        text = PROBE.replace("{numbers}", NUMBERS[os.uname().machine])
        done = subprocess.run([*prefix, sys.executable, "-c", text], capture_output=True, text=True, check=True)
        return list(map(int, done.stdout.split()))

    def test_a_newer_call_gets_the_answer_and_an_older_one_goes_through(self):
        for name, prefix in ANSWERS.items():
            with self.subTest(name):
                error = getattr(errno, name)
                self.assertEqual(self.answers(*prefix), [error, error, errno.EINVAL, 0, errno.EINVAL, 0, 0])

    def test_a_word_that_is_missing_is_told(self):
        for words in (), ("--eperm",), ("/no/such/program",):
            done = subprocess.run([OLD_KERNEL, *words], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 125)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


class OldKernel(JobTest):
    def kill_in_turn(self, job, ranks):
        """Each is dead before the next one is killed, if the agent has not ended that one. None is
        collected meanwhile, if the agent is stopped."""
        pids = [job.worker(rank) for rank in ranks]
        for pid, process in [(pid, os.pidfd_open(pid)) for pid in pids]:
            self.addCleanup(os.close, process)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            wait_until(lambda: state_of(pid) in ("Z", None), "a worker's death", pause=0)

    def test_the_first_death_is_the_root_cause(self):
        """Rank 2 dies, and the others at once. In every other run the agent stands still meanwhile,
        as on a busy machine. So the kernel keeps one signal for all of them."""
        script = self.worker(WAITING)
        for run in range(RUNS):
            job = self.start("--nproc-per-node=3", script, prefix=ANSWERS["ENOSYS"])
            self.heard(3)
            agent = job.agent()
            if run % 2 == 0:
                os.kill(agent, signal.SIGSTOP)
                wait_until(lambda: state_of(agent) == "T", "an agent that stands still", pause=0)
                self.kill_in_turn(job, (2, 0, 1))
                os.kill(agent, signal.SIGCONT)
            else:
                self.kill_in_turn(job, (2, 0))
            code, _, err = job.finish()
            self.assertEqual(code, 1)
            self.assertRegex(self.cause(err), r"rank +: 2 \(local_rank: 2\)", f"run {run}")
        print(f"root cause right in {RUNS} of {RUNS} runs")

    def test_a_worker_has_no_foreign_descriptor(self):
        foreign = os.open("/dev/null", os.O_RDONLY)
        self.addCleanup(os.close, foreign)
        os.set_inheritable(foreign, True)
        script = self.script("#!/bin/sh\nls /proc/$$/fd\n")
        for name, prefix in ANSWERS.items():
            with self.subTest(name):
                code, out, err = self.run_job("--no-python", script, prefix=prefix, pass_fds=(foreign,))
                self.assertEqual(code, 0, err)
                # The shell keeps its script open, at the first number that is free from 10 on.
                self.assertEqual([fd for fd in out.split() if int(fd) < 10], ["0", "1", "2"])
                self.assertNotIn(str(foreign), out.split())

    def test_a_restart_and_two_nodes(self):
        """Threads, too: those of gRPC."""
        script = self.script('#!/bin/sh\ntest "$TORCHELASTIC_RESTART_COUNT" = 1 || exit 4\necho $RANK of $WORLD_SIZE\n')
        for name, prefix in ANSWERS.items():
            with self.subTest(name):
                port = free_port()
                flags = ("--nnodes=2", "--nproc-per-node=2", "--max-restarts=1", "--rdzv-backend=c10d",
                         f"--rdzv-endpoint=127.0.0.1:{port}", script)
                ends = [job.finish() for job in [self.start(*flags, prefix=prefix) for _ in range(2)]]
                self.assertEqual([code for code, _, _ in ends], [0, 0], ends)
                self.assertEqual(sorted("".join(out for _, out, _ in ends).splitlines()), [f"{rank} of 4" for rank in range(4)])

    def test_a_signal_ends_a_job(self):
        for name, prefix in ANSWERS.items():
            with self.subTest(name):
                job = self.start("--nproc-per-node=2", self.worker(SLEEPER), prefix=prefix)
                self.heard(2)
                self.assertEqual(self.stop(job)[0], 1)

    def test_the_doctor_says_what_is_missing(self):
        for name, prefix in ANSWERS.items():
            with self.subTest(name):
                _, out, err = self.run_job("doctor", prefix=prefix, env=with_variables())
                line = next((line for line in out.splitlines() if " kernel: " in line), err)
                self.assertTrue(line.startswith("ok "), line)
                for call in "pidfd_send_signal", "pidfd_open", "clone3", "close_range", "futex_waitv":
                    self.assertRegex(line, rf"; without {call}( with \w+)? \([^()]+\)")

    def test_ranks_of_the_engine_sum(self):
        for name, prefix in ANSWERS.items():
            with self.subTest(name):
                done = subprocess.run([*prefix, BIN / "collectives_worker", "shm", "2", "500", "1"], capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    main()
