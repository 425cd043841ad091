"""Acceptance case 26: a Gloo job whose rank 1 dies in its first attempt runs to its end in the
second, every time. Under torchrun's 2.11 5 of 17 did.

DDPRUN_TEST_RUNS   jobs of each kind, default 3 (each takes two starts of PyTorch by two workers)
"""

import os
import time
import unittest

from cases_support import CaseTest, free_port, main, told, torch_python, with_variables

RUNS = int(os.environ.get("DDPRUN_TEST_RUNS", "3"))
JOB_DEADLINE = 180  # seconds; a job takes some five on an idle machine
JOB = """
import os, sys
import torch, torch.distributed as dist
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
assert value.item() == dist.get_world_size()
if rank == 1 and attempt == 0:
    os._exit(9)
dist.all_reduce(value)
dist.destroy_process_group()
sys.stdout.write(f"rank {rank} done in attempt {attempt}\\n")
sys.stdout.flush()
os._exit(0)  # PyTorch's own exit aborts now and then, under any launcher
"""


@unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
class CaseGloo(CaseTest):
    def all_heal(self, kind, flags):
        script = self.script(JOB, "job.py")
        env = with_variables(PYTHON_EXEC=torch_python(), OMP_NUM_THREADS="1")
        took = []
        for run in range(RUNS):
            with self.subTest(kind=kind, run=run):
                begin = time.monotonic()
                code, out, err = self.run_job(*flags(), "--nproc-per-node=2", "--max-restarts=3",
                                              script, env=env, timeout=JOB_DEADLINE)
                took.append(time.monotonic() - begin)
                self.assertEqual(code, 0, err)
                self.assertEqual(sorted(out.splitlines()),
                                 ["rank 0 done in attempt 1", "rank 1 done in attempt 1"])
        told(f"{kind}: a job that restarts once", took)

    def test_case_26_standalone(self):
        self.all_heal("standalone", lambda: ["--standalone"])

    def test_case_26_static(self):
        self.all_heal("static", lambda: ["--master-addr=127.0.0.1", f"--master-port={free_port()}"])


if __name__ == "__main__":
    main()
