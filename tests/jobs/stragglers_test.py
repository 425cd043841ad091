#!/usr/bin/env python3
"""A rank that is slower than the others is named, on stock PyTorch. And what the hook takes down of
a rank's steps."""

import json
import os
import socket
import subprocess
import types
import unittest
import unittest.mock

from machine import wait_until
from support import DDPRUN, ROOT, LoggedTest, main, torch_python, with_variables

# Each step is a sleep and an all-reduce of DDP. It ends when the test does.
WORKER = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
own = 0.05 if dist.get_rank() == 1 else 0.04
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    time.sleep(own)
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""
LINE = f"ddprun: rank 1 on {socket.gethostname()} is slower than the others: own time "
SECONDS = 150  # a busy machine takes long to import PyTorch
MS = 1_000_000


class Hook:
    """The hook of a worker that has done `steps`, each of 50 ms."""
    STEPS = 0

    def __init__(self, folder, steps):
        self.folder, self.rank, self.words = folder, 2, [steps]
        self.ends = [0] * 1024
        for step in range(max(steps - 1023, 0), steps + 1):
            self.ends[step % 1024] = self.end_of(step)
        self.now = self.end_of(steps)

    @staticmethod
    def end_of(step):
        return (1000 + 50 * step) * MS

    def clock(self):
        return self.now


class Samples(LoggedTest):
    CLOCK = 1_700_000_000 * 1000 * MS  # the time of day less the hook's clock
    CALLS = 20, 40  # of each step, in ms from its beginning

    def setUp(self):
        super().setUp()
        self.scope = {"os": os, "sys": types.SimpleNamespace(modules={"time": types.SimpleNamespace(
            time=lambda: (self.CLOCK + self.hook.now) / 1e9, time_ns=lambda: self.CLOCK + self.hook.now)})}
        for part in "witness", "steps":
            exec((ROOT / f"agent/standby/python/{part}.py").read_text(), self.scope)
        self.entries = []
        self.scope.update(dumps_of_recorder=list, entries_of=lambda _: self.entries, ranks_by_group=lambda: {"0": (0, 1, 2), "1": (1, 2)})

    def call(self, when, group="0", is_p2p=False, record=0):
        self.entries.append({"is_p2p": is_p2p, "process_group": (group, ""), "time_created_ns": self.CLOCK + when, "record_id": record})

    def steps(self, first, last, calls=CALLS):
        for step in range(first, last + 1):
            for call in calls:
                self.call(Hook.end_of(step - 1) + call * MS, record=len(self.entries))

    def taken(self, steps, every=20):
        """The fields of the sample that is there when it is time."""
        self.hook = Hook(self.folder, steps)
        sampler = self.scope["StepSampler"](self.hook, every)
        self.hook.now += every * 1000 * MS
        sampler.take()
        path = self.folder / "steps_2"
        return path.read_text().rstrip("\n").split("\t") if path.exists() else None

    def test_a_sample_has_the_means_of_its_steps(self):
        self.steps(1, 100)
        number, _, members, steps, calls, step_us, _, *spread, called = self.taken(100)
        # The first step began before the hook knew of steps. The longest two are left out.
        self.assertEqual((number, members, steps, calls, step_us, called), ("1", "3", "98", "2", "50000", "20000,40000"))
        self.assertEqual(spread, ["50000", "50000", "40000", "40000", "40000"])

    def test_percentiles_count_the_longest_steps(self):
        for step in range(1, 101):
            self.steps(step, step, calls=[30 if step % 20 else 45])
        *_, p50, p99, own_p50, own_p97, own_p99, called = self.taken(100)
        self.assertEqual((p50, p99, own_p50, own_p97, own_p99), ("50000", "50000", "30000", "45000", "45000"))
        self.assertLess(int(called), 31000)

    def test_steps_that_the_recorder_forgot_are_left_out(self):
        self.steps(61, 100)
        del self.entries[0]
        self.assertEqual(self.taken(100)[3], "37")

    def test_other_groups_and_sends_do_not_count(self):
        self.steps(1, 100)
        for step in range(50, 60):
            self.call(Hook.end_of(step) + 10 * MS, group="1", record=1000)
            self.call(Hook.end_of(step) + 10 * MS, is_p2p=True, record=1000)
        self.assertEqual(self.taken(100)[2:5], ["3", "98", "2"])

    def test_steps_with_other_calls_do_not_count(self):
        self.steps(1, 80)
        self.steps(81, 90, calls=(20, 30, 40))
        self.assertEqual(self.taken(100)[3:5], ["78", "2"], "the last ten have none")

    def test_of_many_calls_sixteen_are_told(self):
        self.steps(1, 20, calls=range(1, 41))
        _, _, _, _, calls, _, _, *_, called = self.taken(20)
        self.assertEqual(calls, "40")
        self.assertEqual([int(one) // 1000 for one in called.split(",")], [3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28, 30, 33, 35, 38, 40])

    def test_without_a_recorder_the_steps_are_told(self):
        os.environ["WORLD_SIZE"] = "4"
        self.addCleanup(os.environ.pop, "WORLD_SIZE")
        self.assertEqual(self.taken(3000)[2:6], ["4", "1021", "0", "50000"])

    def test_few_steps_are_no_sample(self):
        self.steps(1, 7)
        self.assertIsNone(self.taken(7))

    def test_what_is_wanted(self):
        self.hook = Hook(self.folder, 0)
        for value, every in {"": 20, "5": 5, "3601": 20, "x": 20}.items():
            with unittest.mock.patch.dict(os.environ, DDPRUN_STRAGGLER_WINDOW=value):
                self.assertEqual(self.scope["sampler_of"](self.hook).every, every, value)
        with unittest.mock.patch.dict(os.environ, DDPRUN_STRAGGLER_WINDOW="0"):
            self.assertIsNone(self.scope["sampler_of"](self.hook))


class Stragglers(LoggedTest):
    @unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
    def test_a_rank_that_is_a_quarter_slower_is_named(self):
        env = with_variables(PYTHON_EXEC=torch_python(), OMP_NUM_THREADS="1", DDPRUN_STRAGGLER_WINDOW="2", DDPRUN_HISTORY="1")
        job = self.start("--nproc-per-node=3", "--log-dir", self.logs, self.script(WORKER, "w.py"), env=env)
        os.set_blocking(job.process.stderr.fileno(), False)
        lines = []

        def named():
            lines.extend(job.process.stderr.readlines())
            return any(line.startswith(LINE) for line in lines)

        wait_until(named, "a verdict", SECONDS)
        recorded = [json.loads(line) for line in (self.attempt().parent / "incidents.jsonl").read_text().splitlines()]
        self.assertEqual([(one["kind"], one["attempt"], one["ranks"]) for one in recorded], [("stragglers", 0, [1])])
        ratio = float(recorded[0]["reason"].partition("a step, ")[2].partition(" x the median")[0])
        self.assertTrue(1.15 < ratio < 1.3, recorded)
        done = subprocess.run([DDPRUN, "report", self.logs], capture_output=True, text=True, timeout=60)
        self.assertIn("is slower than the others", done.stdout)

    def test_a_window_that_is_none_is_refused(self):
        env = with_variables(DDPRUN_STRAGGLER_WINDOW="2.5")
        self.refused(1, ["DDPRUN_STRAGGLER_WINDOW=2.5: expected whole seconds from 1 to 3600, or 0 for none"], self.script("", "n.py"), env=env)


if __name__ == "__main__":
    main()
