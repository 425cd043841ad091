#!/usr/bin/env python3
"""--check-replicas on stock PyTorch: ranks that part in silence are named, and equal ones are
not."""

import json
import os
import socket
import subprocess
import sys
import unittest

from machine import free_port, wait_until
from support import ROOT, LoggedTest, main, torch_python, with_variables

WORKER = ROOT / "tests/campaigns/parting_worker.py"
sys.path.insert(0, str(WORKER.parent))
from parting_worker import what_is_said  # noqa: E402

LINE = "ddprun: replicas differ: "
EVERY, PARTS_AFTER, STEPS = 10, 64, 80
SECONDS = 150  # a busy machine takes long to import PyTorch
PARTING = ["weight", "momentum", "left_out"]
NO_DDP = """
import torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1)
for _ in range(3):
    optimizer.step()
"""

# The hook's part alone: what is hashed, and when it looks for modules.
PARTS = """
import os, sys, types, torch
scope = {"os": os, "sys": sys}
with open(sys.argv[1]) as file:
    exec(file.read(), scope)
column = torch.arange(16.0).reshape(4, 4)[:, 2]
hash = scope["Hash"]()
assert hash.of(column).item() == hash.of(column.contiguous()).item()
looks = []
scope["objects_of"] = lambda kind: looks.append(one().steps) or []
check = scope["Check"](types.SimpleNamespace(folder=sys.argv[2], rank=0, compiles=None), 10)
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1)
one = lambda: check.of_optimizer[optimizer]
def steps(count):
    for _ in range(count):
        check.before_step(optimizer)
        check.after_step(optimizer)
steps(100)
assert looks == [10, 20, 40, 80], looks
one().ring, one().next_check, check.modules = True, 1, [lambda: None]
steps(10)
assert looks[4:] == [110], looks
one().pending = (1, 1, None)  # to ask for it would fail
torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: True
steps(1)
assert sorted(check.told) == ["a step that a CUDA graph records is not compared", "no module is under DistributedDataParallel, so nothing is compared"], check.told
"""


@unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
class CheckReplicas(LoggedTest):
    def setUp(self):
        super().setUp()
        self.env = with_variables(PYTHON_EXEC=torch_python(), OMP_NUM_THREADS="1")
        self.go = self.folder / "go"
        os.mkfifo(self.go)

    def begin(self, *flags, kinds, logs=None):
        job = self.start(f"--check-replicas={EVERY}", "--log-dir", logs or self.logs, *flags, WORKER,
                         self.go, PARTS_AFTER, STEPS, ",".join(kinds), env=self.env)
        job.errors = []
        os.set_blocking(job.process.stderr.fileno(), False)
        return job

    def verdicts(self, job, count):
        def found():
            job.errors += job.process.stderr.readlines()
            return [line.removeprefix(LINE) for line in job.errors if line.startswith(LINE)]

        wait_until(lambda: len(found()) >= count, f"{count} verdicts", SECONDS)
        return found()

    def let_go(self, *jobs):
        gate = os.open(self.go, os.O_RDWR)  # opens whether or not a worker is there yet
        self.addCleanup(os.close, gate)
        for job in jobs:
            os.set_blocking(job.process.stderr.fileno(), True)
            code, _, err = job.finish(SECONDS)
            self.assertEqual(code, 0, err)
            self.assertNotIn(LINE, err)

    def test_ranks_of_a_node_are_named_with_tensor_and_step(self):
        job = self.begin("--nproc-per-node=3", kinds=[*PARTING, "clean"])
        said = self.verdicts(job, 3)
        sentences = {kind: what_is_said(kind, EVERY, PARTS_AFTER, socket.gethostname(), 3) for kind in PARTING}
        self.assertEqual({line.partition("; details in ")[0] for line in said}, set(sentences.values()))
        for line in said:
            sentence, _, folder = line.rstrip("\n").partition("; details in ")
            with self.subTest(sentence):
                self.assertEqual(sorted(os.listdir(folder)), ["rank_0.txt", "rank_1.txt", "rank_2.txt", "verdict.txt"])
                with open(f"{folder}/rank_1.txt") as file:
                    self.assertRegex(file.read(), "# optimizer 0, step 70: hash and tensor\n[0-9a-f]{16}\tthe list of tensors\n[0-9a-f]{16}\t0.weight\n")
        lines = (self.attempt().parent / "incidents.jsonl").read_text().splitlines()
        recorded = [json.loads(line) for line in lines]
        self.assertEqual({one["reason"] for one in recorded}, set(sentences.values()))
        self.assertEqual({(one["kind"], one["attempt"], one["step"]) for one in recorded}, {("replicas_differ", 0, 70)})
        self.assertEqual(sorted(one["ranks"] for one in recorded), [[0, 1, 2], [2], [2]])
        self.let_go(job)

    def test_ranks_of_two_nodes_are_compared(self):
        flags = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
        jobs = [self.begin(*flags, f"--node-rank={node}", f"--nproc-per-node={workers}", kinds=["momentum"], logs=self.folder / f"logs_{node}")
                for node, workers in enumerate((2, 1))]
        sentence = what_is_said("momentum", EVERY, PARTS_AFTER, socket.gethostname(), 3)
        for job in jobs:
            self.assertEqual([line.partition("; details in ")[0] for line in self.verdicts(job, 1)], [sentence])
        self.let_go(*jobs)

    def test_the_hooks_parts(self):
        subprocess.run([torch_python(), "-c", PARTS, ROOT / "agent/standby/python/replicas.py", self.folder], check=True, timeout=SECONDS)

    def test_what_is_not_compared_is_told(self):
        code, _, err = self.run_job("--check-replicas=2", "--nproc-per-node=1", self.script(NO_DDP, "no_ddp.py"), env=self.env, timeout=SECONDS)
        self.assertEqual(code, 0, err)
        self.assertIn("--check-replicas: rank 0: no module is under DistributedDataParallel, so nothing is compared", err)


if __name__ == "__main__":
    main()
