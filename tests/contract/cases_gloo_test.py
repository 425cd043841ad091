"""Acceptance case 26: a Gloo job whose rank 1 dies in its first attempt, and is late in the second,
runs to its end in the second, every time. Under torchrun's 2.11 5 of 17 did.

DDPRUN_TEST_RUNS   jobs of each kind, default 3 (each takes two starts of PyTorch by two workers)
"""

import os
import sys
import time
import unittest

from cases_support import ROOT, CaseTest, free_port, main, told, torch_python, with_variables

WORKER = ROOT / "tests/campaigns/gloo_worker.py"
sys.path.insert(0, str(WORKER.parent))
from gloo_worker import CLEAN  # noqa: E402

RUNS = int(os.environ.get("DDPRUN_TEST_RUNS", "3"))
JOB_DEADLINE = 180  # seconds; a job takes some eight on an idle machine


@unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
class CaseGloo(CaseTest):
    def all_heal(self, kind, flags):
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
