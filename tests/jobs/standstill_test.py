#!/usr/bin/env python3
"""Jobs whose ranks stand still, and what is said of them. The workers' torch is a small stand-in
with the same names, so that no test waits for an import. The last test has the real one."""

import os
import pathlib
import signal
import socket
import time
import unittest
import urllib.request

from machine import wait_until
from support import ROOT, LoggedTest, main, torch_python, with_variables

# From the last step to the verdict: ten to fifteen seconds until the suspicion, six for the look.
# On a busy machine answers take longer.
VERDICT_S = 60
PAGE_WORDS = 24  # of a worker (proto/worker_page.h)

# The witness asks this of torch.distributed: the groups, and the flight recorder's trace.
STAND_IN = {
    "torch/__init__.py": "",
    "torch/_C/__init__.py": "",
    "torch/_C/_distributed_c10d.py": """
import pickle
CALLS = []  # of [group, number, operation, sizes, is_over]
def _dump_fr_trace(collectives, stacks, only_active):
    entries = [{"pg_id": group, "process_group": (str(group), ""), "collective_seq_id": number, "is_p2p": False,
                "profiling_name": "gloo:" + operation, "input_sizes": sizes, "retired": is_over}
               for group, number, operation, sizes, is_over in CALLS]
    status = {str(group): {"last_enqueued_collective": number} for group, number, *_ in CALLS}
    return pickle.dumps({"entries": entries, "pg_status": status})
""",
    "torch/distributed/__init__.py": "",
    "torch/distributed/distributed_c10d.py": """
import os, types
import torch._C._distributed_c10d
_world = types.SimpleNamespace(pg_names={"all": "0"}, pg_group_ranks={"all": {rank: rank for rank in range(int(os.environ["WORLD_SIZE"]))}})
""",
}
# A worker that says when it stands still, and then does so in its own way.
WORKER = """
import ctypes, mmap, os, signal, sys, threading, time
import torch.distributed.distributed_c10d
from torch._C._distributed_c10d import CALLS
import colorsys  # the next import after torch: the hook hears of it

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
guilty = rank == 1
def step():
    offset, _, _, path = os.environ["DDPRUN_PAGE"].split(":", 3)
    with open(path, "r+b") as page:
        words = memoryview(mmap.mmap(page.fileno(), 0))[int(offset):int(offset) + 64].cast("Q")
    words[1] = time.monotonic_ns()
    words[0] += 1
def collective(number, operation="all_reduce", sizes=[[9]], group=0, is_over=False):
    CALLS.append([group, number, operation, sizes, is_over])
def wait():
    while True:
        time.sleep(1000)
def train():
    for number in range(1, 6):
        collective(number, is_over=True)
        step()
    if attempt:
        sys.exit(0)
    print("stands", flush=True)
    {stand}
    wait()
def main():
    train()
main()
"""
WAITS = "if not guilty: collective(6); wait()"
STANDS = {
    "nothing": WAITS,
    "lock": f"{WAITS}\n    lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "spin": f"{WAITS}\n    while True: pass",
    "writes": f"{WAITS}\n    while True: open(os.devnull, 'wb').write(b'x' * (1 << 20)); time.sleep(0.1)",
    "held": f"{WAITS}\n    ctypes.PyDLL(None).sleep(1000)",
    "stopped": f"{WAITS}\n    os.kill(os.getpid(), signal.SIGSTOP)",
    "ended": f"{WAITS}\n    sys.exit(0)",
    "operation": "collective(6, 'barrier' if guilty else 'all_reduce', [] if guilty else [[9]])",
    "shape": "collective(6, sizes=[[5 if guilty else 9]])",
    "network": "collective(6)",
}
WAIT_LINE = WORKER.splitlines().index("        time.sleep(1000)") + 1
STAND_LINE = WORKER.splitlines().index("    {stand}") + 1
LINE = "ddprun: the job stands still: "


class Standstill(LoggedTest):
    def setUp(self):
        super().setUp()
        self.packages = self.folder / "packages"
        for name, text in STAND_IN.items():
            (self.packages / name).parent.mkdir(parents=True, exist_ok=True)
            (self.packages / name).write_text(text)

    def begin(self, stand, *flags, workers=2, **variables):
        """A job whose workers stand still. They have written so when this returns."""
        fifo = self.fifo(f"{len(self.fifos)}")
        text = WORKER.replace("{stand}", STANDS[stand]).replace('print("stands", flush=True)', f'open("{fifo}", "w").write("stands\\n")')
        script = self.script(text, f"{stand}.py")
        env = with_variables(OMP_NUM_THREADS="1", PYTHONPATH=str(self.packages), **variables)
        job = self.start(f"--nproc-per-node={workers}", "--shutdown-timeout=1", "--log-dir", self.logs, *flags, script, env=env)
        job.errors = []
        self.read_lines(fifo, workers)
        return job

    def said(self, job, wanted, seconds=VERDICT_S):
        """The first line on stderr that begins with `wanted`."""
        os.set_blocking(job.process.stderr.fileno(), False)

        def found():
            job.errors += job.process.stderr.readlines()
            return next((line for line in job.errors if line.startswith(wanted)), None)

        wait_until(found, f"{wanted} in {job.errors}", seconds)
        return found().removeprefix(wanted).rstrip("\n")

    def verdict(self, job):
        return self.said(job, LINE).partition("; details in ")[0]

    def test_a_verdict_names_the_rank_and_the_line(self):
        jobs = {stand: self.begin(stand) for stand in STANDS}
        waits = "; rank 0 waits in all_reduce #6 (9)"
        wanted = {
            "nothing": f"rank 1 does nothing at wait (nothing.py:{WAIT_LINE}), last all_reduce #5" + waits,
            "lock": f"rank 1 does nothing at train (lock.py:{STAND_LINE + 1}), last all_reduce #5" + waits,
            "held": "rank 1 does nothing, and no Python runs in it: a call holds the interpreter, last step 5" + waits,
            "stopped": "rank 1 is stopped: it got SIGSTOP or SIGTSTP from outside" + waits,
            "ended": "rank 1 has ended, last step 5" + waits,
            "operation": f"rank 1 waits in barrier #6 at wait (operation.py:{WAIT_LINE}), rank 0 in all_reduce #6 (9) at wait (operation.py:{WAIT_LINE})",
            "shape": f"rank 0 waits in all_reduce #6 (9) at wait (shape.py:{WAIT_LINE}), rank 1 in all_reduce #6 (5) at wait (shape.py:{WAIT_LINE})",
            "network": f"ranks 0-1 wait in all_reduce #6 (9) at wait (network.py:{WAIT_LINE}): all have come, and the network or a device does not go on",
        }
        for stand, sentence in wanted.items():
            with self.subTest(stand):
                self.assertEqual(self.verdict(jobs[stand]), sentence)
        for stand in "spin", "writes":  # looked at by now, too
            with self.subTest(stand):
                code, out, err, _ = self.stop(jobs[stand])
                self.assertNotIn(LINE, err)

    def test_details_are_kept_beside_the_logs_and_the_page_shows_it(self):
        job = self.begin("nothing", "--http=:0")
        folder = pathlib.Path(self.said(job, LINE).partition("; details in ")[2])
        self.assertEqual(folder, self.attempt() / "standstill_0")
        wait_until((folder / "verdict.txt").exists, "the last file")
        self.assertEqual(sorted(path.name for path in folder.iterdir()), ["rank_0.txt", "rank_1.txt", "trace_0", "trace_1", "verdict.txt"])
        self.assertIn("frame\town\twait\t", (folder / "rank_1.txt").read_text())
        url = self.said(job, "ddprun: metrics and status page at ")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as answer:
            page = answer.read().decode()
        for part in ("Stands still: rank 1 does nothing at wait", f"rank 0 on {socket.gethostname()}: held up<",
                     f"rank 1 on {socket.gethostname()}: stands still<", "<title>standstill: rank 1", "rank 1: 5 steps, "):
            self.assertIn(part, page)

    def test_a_restart_ends_the_rank_to_blame_alone(self):
        job = self.begin("nothing", "--on-hang=restart", "--max-restarts=1")
        code, _, err = job.finish(2 * VERDICT_S)
        self.assertEqual(code, 0, err)
        self.assertIn("rank 1", err)
        self.assertIn(f"stood still: rank 1 does nothing at wait (nothing.py:{WAIT_LINE})", err)
        self.assertIn(f'nothing.py", line {WAIT_LINE} in wait', err)  # the stacks of its SIGABRT

    def test_an_end_is_one_although_restarts_are_left(self):
        job = self.begin("held", "--on-hang=end", "--max-restarts=3")
        code, _, err = job.finish(2 * VERDICT_S)
        self.assertEqual(code, 1, err)
        self.assertIn("stood still: rank 1 does nothing, and no Python runs in it", self.cause(err))

    def test_nobody_looks_with_off_or_without_the_hook(self):
        jobs = [self.begin("stopped", "--on-hang=off"), self.begin("nothing", "--python-hook=0")]
        beside = self.begin("stopped")
        self.verdict(beside)
        for job in jobs:
            code, out, err, _ = self.stop(job)
            self.assertNotIn(LINE, err)

    def test_a_job_that_goes_on_says_after_how_long(self):
        job = self.begin("stopped")
        self.verdict(job)
        pid = job.worker(1)
        os.kill(pid, signal.SIGCONT)
        # It has stopped itself before it waits; a step is what counts.
        self.step_for(pid)
        self.assertRegex(self.said(job, "ddprun: the job went on after "), r"^\d+ s$")

    @staticmethod
    def step_for(pid):
        """A step in the page of that worker and of its sibling."""
        import mmap
        variables = dict(one.split("=", 1) for one in pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in one)
        _, _, _, path = variables["DDPRUN_PAGE"].split(":", 3)
        with open(path, "r+b") as page:
            words = memoryview(mmap.mmap(page.fileno(), 0)).cast("Q")
        for worker in 0, 1:
            words[PAGE_WORDS * worker + 1] = time.monotonic_ns()
            words[PAGE_WORDS * worker] += 1


if __name__ == "__main__":
    main()
