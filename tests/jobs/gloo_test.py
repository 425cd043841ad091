"""Stock PyTorch's process group on Gloo: that it comes up, and that a restart meets nothing of the
attempt before.

DDPRUN_TEST_RUNS is the number of jobs of each kind of case 26, default 3. Each takes two starts of
PyTorch by two workers.
"""

import os
import sys
import time
import unittest

from machine import free_port
from support import ROOT, JobTest, main, told, torch_python, with_variables

WORKER = ROOT / "tests/campaigns/gloo_worker.py"
sys.path.insert(0, str(WORKER.parent))
from gloo_worker import CLEAN  # noqa: E402

RUNS = int(os.environ.get("DDPRUN_TEST_RUNS", "3"))
JOB_DEADLINE = 180  # seconds; a job takes some eight on an idle machine
LAUNCHED = """
import os, sys
import torch, torch.distributed as dist
assert dist.is_torchelastic_launched()
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
sys.stdout.write(f"{torch.__version__} rank {dist.get_rank()} sum {value.item()}\\n")
sys.stdout.flush()
dist.destroy_process_group()
os._exit(0)  # PyTorch's own exit aborts now and then, under any launcher
"""


@unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
class Gloo(JobTest):
    def test_case_60_pytorch_knows_its_launcher(self):
        """With the version of PyTorch that is in .venv (2.11). The case names 2.15 too, which this
        repository does not install."""
        env = with_variables(PYTHON_EXEC=torch_python(), OMP_NUM_THREADS="1")
        code, out, err = self.run_job("--nproc-per-node=2", self.script(LAUNCHED, "launched.py"), env=env, timeout=JOB_DEADLINE)
        self.assertEqual(code, 0, err)
        print(out, end="")
        self.assertEqual(sorted(line.split(" ", 1)[1] for line in out.splitlines()), ["rank 0 sum 2.0", "rank 1 sum 2.0"])

    def all_heal(self, kind, flags):
        """Rank 1 of these jobs dies in its first attempt, and is late in the second. They run to
        their end in the second, every time. Under torchrun's 2.11 5 of 17 did."""
        env = with_variables(PYTHON_EXEC=torch_python(), OMP_NUM_THREADS="1")
        took = []
        for run in range(RUNS):
            with self.subTest(kind=kind, run=run):
                words = self.folder / f"{kind}_{run}"
                begin = time.monotonic()
                code, _, err = self.run_job(*flags(), "--nproc-per-node=2", "--max-restarts=3",
                                            WORKER, words, env=env, timeout=JOB_DEADLINE)
                took.append(time.monotonic() - begin)
                self.assertEqual(code, 0, err)
                self.assertEqual(sorted(words.read_text().splitlines()), CLEAN)
        told(f"{kind}: a job that restarts once", took)

    def test_case_26_standalone(self):
        self.all_heal("standalone", lambda: ["--standalone"])

    def test_case_26_static(self):
        self.all_heal("static", lambda: ["--master-addr=127.0.0.1", f"--master-port={free_port()}"])


if __name__ == "__main__":
    main()
