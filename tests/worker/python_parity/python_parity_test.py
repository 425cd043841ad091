"""The engine and PyTorch's DistributedDataParallel with Gloo train the same model in each mode.
After twenty steps all weights and buffers must have the same bits, and so must all gradients.
DDPRUN_BIN names the folder of the engine's program, DDPRUN the launcher.
"""
import os
import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = HERE.parents[2] / ".venv" / "bin" / "python"
MODES = ["default", "unused", "static", "no_sync", "batch_norm", "float16", "bfloat16", "in_backward", "default_copy", "bfloat16_copy"]
# They may end as another mode does: with the gradients in the buckets, and with steps after
# backward().
ALIKE = "in_backward", "default_copy", "bfloat16_copy"
DEADLINE_S = 150

# Sums that travel in 16 bits: our error is within the bound, and smaller than PyTorch's.
WIRES = ["float16_wire", "bfloat16_wire"]
# The products of small matrices have other last bits.
CLOSE = ["power_sgd"]
TOLERANCE = 1e-5


def ends(ranks, *command):
    """{mode: what its training ended with} of one job."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([os.environ["DDPRUN"], "--standalone", f"--nproc-per-node={ranks}", *map(str, command)], env=environment,
                          capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)


class PythonParity(unittest.TestCase):
    def assert_equal_weights(self, ranks):
        ours = ends(ranks, pathlib.Path(os.environ["DDPRUN_BIN"]) / "parity_trainer", *MODES, *CLOSE, *WIRES)
        theirs = ends(ranks, PYTHON, HERE / "parity_trainer.py", *MODES, *CLOSE, *WIRES)
        for mode in WIRES:
            self.assert_better(ranks, mode, ours.pop(mode), theirs.pop(mode))
        for mode in CLOSE:
            self.assert_close(ours.pop(mode), theirs.pop(mode))
        self.assertEqual(sorted(ours), sorted(MODES))
        self.assertEqual(ours, theirs)
        for mode in ALIKE:
            del ours[mode]
        self.assertEqual(len(set(ours.values())), len(MODES) - len(ALIKE), "modes that end alike tell nothing")

    def assert_close(self, ours, theirs):
        ours, theirs = ([float(value) for value in values.split(",")] for values in (ours, theirs))
        self.assertEqual(len(ours), len(theirs))
        self.assertLess(max(abs(our - their) for our, their in zip(ours, theirs)), TOLERANCE)

    def assert_better(self, ranks, mode, ours, theirs):
        (worst, mean), (their_worst, their_mean) = ([float(value) for value in values.split(",")] for values in (ours, theirs))
        print(f"{mode}, {ranks} ranks: worst {worst:.3f} of the bound, PyTorch's {their_worst:.3f}; mean error {mean:.3e}, {their_mean:.3e}")
        self.assertLessEqual(worst, 1)
        self.assertGreater(mean, 0, "nothing was rounded")
        # Two numbers are added with one rounding by both.
        self.assertLessEqual(mean, their_mean)
        if ranks > 2:
            self.assertLess(mean, their_mean)

    def test_two_ranks(self):
        self.assert_equal_weights(2)

    def test_three_ranks(self):
        self.assert_equal_weights(3)

    def test_four_ranks(self):
        self.assert_equal_weights(4)


def main():
    """Runs a script of tests that need PyTorch."""
    if not PYTHON.exists():
        print("skipped: no .venv with torch here")
        sys.exit(77)
    unittest.main()


if __name__ == "__main__":
    main()
