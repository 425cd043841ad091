"""Drives the example programs, for tests. Only the standard library.

MNIST names the program (default build/bin/mnist).
"""

import functools
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MNIST = os.environ.get("MNIST", str(ROOT / "build" / "bin" / "mnist"))
# Seconds until a run counts as hung.
DEADLINE = float(os.environ.get("DDPRUN_TEST_DEADLINE", "120"))


def environment(**changes):
    """This process's, without those that a launcher above us may have set. A program started with
    it is a world of one."""
    ours = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DDPRUN_JOB")
    clean = {name: value for name, value in os.environ.items()
             if name not in ours and not name.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_", "PET_"))}
    # No GPU: what is compared with PyTorch on the CPU must be computed there, on every machine.
    return {**clean, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1", **changes}


def run(*command, deadline=DEADLINE, **changes):
    """The finished process, with its text as it came (carriage returns too); `changes` are
    environment variables."""
    done = subprocess.run([str(word) for word in command], env=environment(**changes), capture_output=True,
                          timeout=deadline, check=False)
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    return done


def value_of(name, output):
    """Returns the value in a line `name=value` of the output."""
    for line in output.splitlines():
        if line.startswith(name + "="):
            return line[len(name) + 1:]
    raise AssertionError(f"no line {name}=… in:\n{output}")


@functools.cache
def python_with_torch():
    """The interpreter to run PyTorch scripts with, or None. PyTorch is looked for and not imported,
    which takes seconds."""
    for python in (str(ROOT / ".venv" / "bin" / "python"), sys.executable):
        if os.path.exists(python) and run(python, "-c", "import importlib.util as u; assert u.find_spec('torch')").returncode == 0:
            return python
    return None


def run_tests():
    """unittest.main() for one test a process: exit code 77 and the reason as the last line where it
    was skipped."""
    result = unittest.main(verbosity=2, exit=False).result
    for _, reason in result.skipped:
        print(reason)
    skipped = result.testsRun > 0 and len(result.skipped) == result.testsRun
    sys.exit(77 if skipped else not result.wasSuccessful())
