#!/usr/bin/env python3
"""A notice: all ranks save after the same step, and end. A stand-in for torch has the parts that
the hook of a worker looks at. tests/campaigns/preemption does it with PyTorch."""

import signal
import socket
import sys
import unittest

import control
from machine import free_port
from support import LoggedTest, main, with_variables

TORCH = {"torch/__init__.py": "from torch import compiler\n", "torch/compiler.py": "is_dynamo_compiling = lambda: False\n",
         "torch/optim/__init__.py": "",
         "torch/optim/optimizer.py": "HOOKS = []\ndef register_optimizer_step_post_hook(hook):\n  HOOKS.append(hook)\n  return hook\n"}
# It says its rank after three steps, and in the end its rank and the step after which it saves.
WORKER = """#!/usr/bin/env python3
import os, signal, sys, time
import torch.optim.optimizer
try: import half  # any import: the hook looks at torch then
except ImportError: pass
kind, fifo = sys.argv[1:]
rank, step, told = os.environ["RANK"], 0, []
def say(text):
    with open(fifo, "w") as file: file.write(f"{rank} {text}\\n")
asks = kind in ("asks", "saves")
if not asks: signal.signal(signal.SIGTERM, lambda signo, _: told.append(signo))
if asks: import ddprun
is_over = lambda: told or (asks and ddprun.ending())
saved = 0
while not is_over():
    time.sleep(0.003 if rank == "1" else 0.002)
    if kind != "counts_nothing":
        for hook in torch.optim.optimizer.HOOKS: hook(None, (), {})
    step += 1
    if step == 3: say("runs")
    if kind == "saves" and not saved and ddprun.should_save():
        saved = step
        say(f"saves {step}")
    if saved and step == saved + 2: say("goes-on")
if kind == "hangs" and rank == "1":
    while True: signal.pause()
say(f"saved {step if kind != 'counts_nothing' else os.path.exists(os.environ['DDPRUN_NOTICE'])}")
"""


class Preemption(LoggedTest):
    def setUp(self):
        super().setUp()
        for name, text in TORCH.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        self.env = with_variables(PYTHONPATH=str(self.folder), PYTHON_EXEC=sys.executable)
        self.ready = self.fifo()

    def begin(self, kind, *flags, nodes=1):
        self.port = free_port()
        meet = ["--master-addr=127.0.0.1", f"--master-port={self.port}", f"--nnodes={nodes}"]
        jobs = [self.start("--preempt-signal=SIGTERM,SIGUSR1", *flags, *meet, f"--node-rank={node}", self.script(WORKER, "worker.py"),
                           kind, self.ready, env=self.env) for node in range(nodes)]
        return jobs

    def saved(self, count):
        """The steps after which the ranks saved."""
        lines = [line.split() for line in self.read_lines(self.ready, count)]
        self.assertEqual({line[1] for line in lines}, {"saved"}, lines)
        return [line[2] for line in lines]

    def test_all_ranks_of_three_nodes_save_after_the_same_step(self):
        jobs = self.begin("handler", "--nproc-per-node=2", "--exit-codes=detailed", nodes=3)
        self.read_lines(self.ready, 6)
        jobs[1].process.send_signal(signal.SIGTERM)
        steps = self.saved(6)
        self.assertEqual(len(set(steps)), 1, steps)
        for job in jobs:
            code, _, err = job.finish()
            self.assertEqual(code, 122, err)
            self.assertRegex(err, rf"{socket.gethostname()} was given notice \(SIGTERM\): all ranks save at the end of step {steps[0]}, and end within \d+ s\n")

    def test_an_operator_lets_all_ranks_save_after_the_same_step_and_go_on(self):
        jobs = self.begin("saves", "--nproc-per-node=2", "--exit-codes=detailed", "--rdzv-id=job", nodes=2)
        self.read_lines(self.ready, 4)
        code, out, err = control.ctl(f"127.0.0.1:{self.port}", "checkpoint", "job")
        self.assertEqual((code, out), (0, "all ranks are told to save at the end of one step, and go on\n"), err)
        lines = [line.split() for line in self.read_lines(self.ready, 8)]
        steps = {line[2] for line in lines if line[1] == "saves"}
        self.assertEqual(len(steps), 1, lines)
        step, = steps
        self.assertEqual([line[1] for line in lines].count("goes-on"), 4, lines)
        jobs[0].process.send_signal(signal.SIGTERM)
        self.assertEqual(len(set(self.saved(4))), 1)
        for job in jobs:
            code, _, err = job.finish()
            self.assertEqual(code, 122, err)
            self.assertIn(f"an operator asked for a checkpoint: all ranks save at the end of step {step}\n", err)
        self.assertEqual(control.ctl(f"127.0.0.1:{self.port}", "checkpoint", "job")[0], 3)

    def test_a_program_may_ask(self):
        jobs = self.begin("asks", "--nproc-per-node=2", "--exit-preempted=85", "--preempt-deadline=20", nodes=2)
        self.read_lines(self.ready, 4)
        jobs[0].process.send_signal(signal.SIGUSR1)
        self.assertEqual(len(set(self.saved(4))), 1)
        for job in jobs:
            code, _, err = job.finish()
            self.assertEqual(code, 85, err)
            self.assertIn("(SIGUSR1): all ranks save", err)

    def begin_elastic(self):
        """One or two nodes; the first one hosts the rendezvous."""
        meet = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
        jobs = [self.start("--preempt-signal=SIGTERM", "--exit-codes=detailed", *meet, f"--rdzv-conf=last_call_timeout=20,is_host={host}",
                           self.script(WORKER, "worker.py"), "handler", self.ready, env=self.env) for host in ("true", "false")]
        self.read_lines(self.ready, 2)
        return jobs

    def test_all_ranks_save_after_the_same_step_if_the_job_ends_with_the_host(self):
        jobs = self.begin_elastic()
        jobs[0].process.send_signal(signal.SIGTERM)
        for job in jobs:
            code, _, err = job.finish()
            self.assertEqual(code, 122, err)
        self.assertEqual(len(set(self.saved(2))), 1)

    def test_ranks_that_step_are_told_at_once_if_the_others_go_on(self):
        jobs = self.begin_elastic()
        jobs[1].process.send_signal(signal.SIGTERM)
        code, _, err = jobs[1].finish()
        self.assertEqual(code, 122, err)
        self.assertIn("the ranks of this node save at once", err)
        self.saved(2)  # those of the other node save for the new round
        self.read_lines(self.ready, 1)
        jobs[0].process.send_signal(signal.SIGTERM)
        code, _, err = jobs[0].finish()
        self.assertEqual(code, 122, err)
        self.saved(1)

    def test_a_rank_that_hangs_in_saving_is_killed_at_the_deadline_and_named(self):
        job, = self.begin("hangs", "--nproc-per-node=3", "--preempt-deadline=2", "--exit-codes=detailed")
        self.read_lines(self.ready, 3)
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(len(set(self.saved(2))), 1)
        code, _, err = job.finish()
        self.assertEqual(code, 122, err)
        self.assertIn(f"ddprun: rank 1 on {socket.gethostname()} had not ended when the time after the notice was over: killed\n", err)

    def test_a_file_gives_notice(self):
        notice = self.folder / "given"
        notice.write_text("of a job before")
        job, = self.begin("handler", "--nproc-per-node=2", f"--preempt-file={notice}", "--exit-codes=detailed")
        self.read_lines(self.ready, 2)
        notice.write_text("now")
        self.assertEqual(len(set(self.saved(2))), 1)
        code, _, err = job.finish()
        self.assertEqual(code, 122, err)
        self.assertIn("(SIGTERM): all ranks save at the end of step", err)

    def test_ranks_that_count_no_steps_are_told_at_once(self):
        job, = self.begin("counts_nothing", "--nproc-per-node=2", "--exit-codes=detailed")
        self.read_lines(self.ready, 2)
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.saved(2), ["True", "True"], "DDPRUN_NOTICE is there")
        code, _, err = job.finish()
        self.assertEqual(code, 122, err)
        self.assertRegex(err, r"the ranks of this node save at once, and end within \d+ s\n")


if __name__ == "__main__":
    main()
