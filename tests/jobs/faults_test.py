"""Faults that were found from outside; each test failed once."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import threading
import time

from support import DDPRUN, DEAF, SLEEPER, Job, JobTest, main, state_of, wait_until

FLOOD = """#!/bin/sh
trap 'exit 0' TERM
echo $RANK > {fifo}
while :; do echo a line of some length that a reader who pauses does not read; done
"""


class StalledSocket(JobTest):
    """Standard output is a socket (node's child_process, systemd's journal) and its reader pauses."""

    def start_on_socket(self, *args):
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        process = subprocess.Popen([DDPRUN, *map(str, args)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
        theirs.close()
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, ours

    def test_signals_are_heard(self):
        fifo = self.fifo()
        script = self.script(FLOOD.replace("{fifo}", str(fifo)))
        process, _ = self.start_on_socket("--nproc-per-node=2", "-t", "3", f"--log-dir={self.folder}", script)
        self.read_lines(fifo, 2)
        agent = Job.children_of(process.pid)[0]
        wait_until(lambda: len(Job.children_of(agent)) == 2, "two workers")
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: not Job.children_of(agent), "the end of the workers", 10)
        process.send_signal(signal.SIGTERM)  # nobody reads: do not wait for it
        self.assertEqual(process.wait(10), 1)

    def test_a_reader_that_goes_on_gets_every_line(self):
        script = self.script("#!/bin/sh\nseq 50000\n")
        process, ours = self.start_on_socket("-t", "1", f"--log-dir={self.folder}", script)
        path = "none_*/attempt_0/0/stdout.log"
        wait_until(lambda: any(log.read_text().endswith("\n50000\n") for log in self.folder.glob(path)), "a whole log")
        read = b""
        while part := ours.recv(1 << 16):
            read += part  # the first comes when the log is whole: until then this reader pauses
        self.assertEqual(process.wait(10), 0)
        self.assertEqual(read.decode(), "".join(f"[default0]:{n}\n" for n in range(1, 50001)))


LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


class HungAgent(JobTest):
    """The guardian does not wait for its agent without bound."""

    def start_workers(self, text, *args):
        script = self.script(text.replace("{fifo}", str(self.fifo())))
        job = self.start("--nproc-per-node=2", *args, script)
        self.read_lines(self.folder / "ready", 2)
        return job

    def test_a_stopped_agent_is_continued_to_end_the_job(self):
        job = self.start_workers(SLEEPER)
        os.kill(job.agent(), signal.SIGSTOP)
        job.process.send_signal(signal.SIGTERM)
        code, _, err = job.finish(10)
        self.assertEqual(code, 1)
        self.assertIn("received SIGTERM", err)
        job.wait_gone()

    def test_an_agent_that_hangs_is_killed_after_a_second_signal(self):
        job = self.start_workers(DEAF)
        agent = job.agent()
        if LIBC.ptrace(PTRACE_SEIZE, agent, None, None) != 0:
            self.skipTest(f"ptrace is not allowed here: {os.strerror(ctypes.get_errno())}")
        self.assertEqual(LIBC.ptrace(PTRACE_INTERRUPT, agent, None, None), 0)
        wait_until(lambda: state_of(agent) == "t", "a traced agent that stands still")
        begin = time.monotonic()
        for _ in range(2):
            job.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not pending(job.pid, signal.SIGTERM), "a guardian that took the signal")
        # The kernel keeps a dead process for its tracer until that has asked for its status.
        wait_until(lambda: os.WIFSIGNALED(os.waitpid(agent, os.WNOHANG | os.WUNTRACED)[1]), "the agent's end", 40)
        code, _, err = job.finish(10)
        self.assertEqual(code, 128 + signal.SIGKILL)
        self.assertIn("does not end 20 s after a second signal", err)
        self.assertGreater(time.monotonic() - begin, 19)
        job.wait_gone()


def pending(pid, signo):
    """Whether a signal waits to be taken by this process (proc(5), ShdPnd)."""
    with open(f"/proc/{pid}/status") as file:
        mask = next(line.split()[1] for line in file if line.startswith("ShdPnd"))
    return int(mask, 16) >> (signo - 1) & 1


# Saves for a second when it is told to end, once however often that is said.
SAVER = """#!/usr/bin/env python3
import os, signal, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print(os.environ["RANK"], file=open("{fifo}", "w"))
while not asked:
    signal.pause()
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    time.sleep(0.05)
open("{folder}/saved_" + os.environ["RANK"] + "_" + os.environ["GROUP_RANK"], "w").close()
"""


class EverybodyIsSignalled(JobTest):
    """scancel and systemctl stop signal every process of a job: workers must have their time to save all the same."""

    def start_savers(self, name, seconds=1):
        folder = self.folder / name
        folder.mkdir()
        fifo = self.fifo(f"ready_{name}")
        text = SAVER.replace("{fifo}", str(fifo)).replace("{folder}", str(folder)).replace("{seconds}", str(seconds))
        job = self.start("--nproc-per-node=2", self.script(text, f"saver_{name}.py"))
        self.read_lines(fifo, 2)
        return job, folder

    def test_every_rank_saves_whoever_is_signalled_first(self):
        for seed in range(8):
            with self.subTest(seed=seed):
                chance = random.Random(seed)
                job, folder = self.start_savers(str(seed))
                everybody = [job.pid, job.agent(), job.worker(0), job.worker(1)]
                chance.shuffle(everybody)
                for pid in everybody:
                    os.kill(pid, signal.SIGTERM)
                    threading.Event().wait(chance.choice((0, 0.005, 0.02)))  # the gap between them is what is tested
                code, _, err = job.finish()
                self.assertEqual(code, 1, err)
                self.assertEqual(sorted(os.listdir(folder)), ["saved_0_0", "saved_1_0"], everybody)
                job.wait_gone()

    def test_two_quick_requests_of_the_user_still_kill(self):
        job, folder = self.start_savers("twice", seconds=60)
        job.process.send_signal(signal.SIGINT)
        wait_until(lambda: not pending(job.pid, signal.SIGINT), "a guardian that took the signal")
        job.process.send_signal(signal.SIGINT)
        self.assertEqual(job.finish(10)[0], 1)
        self.assertEqual(os.listdir(folder), [])
        job.wait_gone()

    def test_a_signal_to_the_agent_alone_ends_the_job_well(self):
        job, folder = self.start_savers("agent")
        for _ in range(3):
            os.kill(job.agent(), signal.SIGTERM)
            wait_until(lambda: not pending(job.agent(), signal.SIGTERM), "an agent that took the signal")
        self.assertEqual(job.finish()[0], 1)
        self.assertEqual(len(os.listdir(folder)), 2)
        job.wait_gone()


if __name__ == "__main__":
    main()
