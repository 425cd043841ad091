"""The engine against PyTorch. examples/pytorch/ddp_mnist.py is the same job as mnist, on DDP and
Gloo. Both must end with the same loss, digit for digit, and the same accuracy. Alone, and on two
workers under the launcher that DDPRUN names.
"""

import os
import signal
import sys
import tempfile
import unittest

import digits
import support

sys.path.insert(0, str(support.ROOT / "tests" / "jobs"))
import pytorch_exit  # noqa: E402  (found by the line above)

SCRIPT = support.ROOT / "examples" / "pytorch" / "ddp_mnist.py"
DDPRUN = os.environ.get("DDPRUN", str(support.ROOT / "build" / "bin" / "ddprun"))
ONE_WORKER = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def run_pytorch(*command, abort_code=1, **changes):
    """support.run() of a PyTorch script. A run that PyTorch aborts at its exit, and no other, is
    said and repeated."""
    for _ in range(pytorch_exit.RUNS_WITH_ABORTS):
        done = support.run(*command, **changes)
        if not pytorch_exit.aborted(done.returncode, done.stderr, abort_code):
            break
        print("PyTorch aborted at its exit: once more")
    return done


class MnistEqualsPyTorch(unittest.TestCase):
    python = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        # Odd: the last batch is short, a share is padded.
        digits.write_subset(folder.name, train=330, held_out=77)
        self.flags = ["--data", folder.name, "--epochs=2"]

    def assert_same_end(self, ours, theirs):
        for done in (ours, theirs):
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for name in ("loss", "accuracy"):
            self.assertEqual(support.value_of(name, ours.stdout), support.value_of(name, theirs.stdout), name)

    def test_alone(self):
        self.assert_same_end(support.run(support.MNIST, *self.flags),
                             run_pytorch(self.python, SCRIPT, *self.flags, abort_code=-signal.SIGABRT, **ONE_WORKER))

    def test_on_two_workers(self):
        launch = [DDPRUN, "--standalone", "--nproc-per-node=2"]
        self.assert_same_end(
            support.run(*launch, support.MNIST, *self.flags),
            run_pytorch(*launch, SCRIPT, *self.flags, PYTHON_EXEC=self.python))


if __name__ == "__main__":
    MnistEqualsPyTorch.python = support.python_with_torch()
    if MnistEqualsPyTorch.python is None:
        print("skipped: no Python with torch here")
        sys.exit(77)
    unittest.main()
