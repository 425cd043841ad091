"""Training jobs: the engine's mnist and the same job with stock PyTorch, under ddprun."""

import os
import re
import subprocess
import unittest

from support import ROOT, JobTest, main, torch_python, with_variables

BIN = os.environ.get("DDPRUN_BIN", str(ROOT / "build" / "bin"))
MNIST = os.path.join(BIN, "mnist")
DDP_MNIST = ROOT / "examples" / "pytorch" / "ddp_mnist.py"
PYTORCH_ABORT = "terminate called without an active exception"
RUNS_WITH_ABORTS = 5
TRAINING_DEADLINE = 300  # seconds; the job itself takes some ten


def found(pattern, text):
    match = re.search(pattern, text)
    assert match, f"no {pattern} in: {text}"
    return match[1]


class Training(JobTest):
    def mnist(self, *args, flags=()):
        return self.start("--standalone", "--nproc-per-node=2", *flags, MNIST, *args)

    def test_mnist_learns(self):
        code, out, err = self.mnist("--epochs=5").finish(TRAINING_DEADLINE)
        self.assertEqual(code, 0, err)
        self.assertGreaterEqual(float(found(r"accuracy=([0-9.]+)$", out.strip())), 0.93)

    @unittest.skipUnless(subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0,
                         "a mount of its own needs CAP_SYS_ADMIN")
    def test_shared_memory_too_small_for_the_buckets(self):
        small = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=4m tmpfs /dev/shm && exec "$@"', "sh")
        job = self.start("--standalone", "--nproc-per-node=2", MNIST, "--epochs=1", prefix=small)
        code, _, err = job.finish(TRAINING_DEADLINE)
        self.assertEqual(code, 1, err)
        self.assertRegex(err, r"\d+ MiB of shared memory needed for the gradient buckets, /dev/shm has")
        job.wait_gone()

    @unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
    def test_stock_pytorch_gives_torchruns_digits(self):
        args = ["--standalone", "--nproc-per-node=2", DDP_MNIST, "--epochs=1"]
        env = with_variables(PYTHON_EXEC=torch_python())
        theirs = self.trained(args, env, program=(torch_python(), "-m", "torch.distributed.run"))
        self.assertEqual(found(r"loss=(\S+)", self.trained(args, env)), found(r"loss=(\S+)", theirs))

    def trained(self, args, env, **options):
        """What a job printed that ended well. PyTorch 2.11 aborts at its exit now and then, under any launcher (a Gloo thread outlives the
        interpreter): such a run, and no other, is said and repeated."""
        for _ in range(RUNS_WITH_ABORTS):
            code, out, err = self.start(*args, env=env, **options).finish(TRAINING_DEADLINE)
            if code == 0 or PYTORCH_ABORT not in err:
                break
            print("PyTorch aborted at its exit: once more")
        self.assertEqual(code, 0, err)
        return out


if __name__ == "__main__":
    main()
