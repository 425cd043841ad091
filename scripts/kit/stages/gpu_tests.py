"""The test programs that need a GPU, with the numbers of passed and skipped tests."""

import subprocess

from kit import gtest
from kit.stage import Broken, absent, figure, tell

PROGRAMS = ("worker_nccl_test", "worker_gpu_test")
# The reasons for which a test may be skipped on a machine with one GPU.
GOOD_REASONS = ("this machine has a GPU", "this NCCL registers no memory")


def run(tools):
    for name in PROGRAMS:
        done = subprocess.run([tools.program(name)], stdout=subprocess.PIPE, text=True,
                              stdin=subprocess.DEVNULL, check=False, errors="replace")
        found = gtest.read(done.stdout)
        if done.returncode not in (0, 1) or not found.is_whole:
            raise Broken(f"{name} ended with {done.returncode} in {found.last or 'no test'}")
        reasons = sorted({reason for _, reason in found.skipped})
        bad = [name for name, reason in found.skipped if reason not in GOOD_REASONS]
        tell(facts={f"{name}, skips": reasons, f"{name}, failed": found.failed})
        figure(f"{name}: failed", len(found.failed), goal=["is", 0])
        figure(f"{name}: passed", found.passed, goal=["at least", 1], gpu_only=True)
        if tools.dry and bad:
            absent(f"{name}: {len(bad)} tests", "they need a GPU")
        else:
            figure(f"{name}: skipped without a good reason", len(bad), goal=["is", 0])
