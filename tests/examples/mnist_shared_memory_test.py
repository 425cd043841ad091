"""Too little shared memory is said in one line a job, whatever the number of workers. The size of
/dev/shm does not matter, for small models and for ResNet-18. In a mount namespace with a
/proc/meminfo and a /dev/shm of its own, which needs root or unprivileged user namespaces.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import digits
import support

DDPRUN = os.environ.get("DDPRUN", str(support.ROOT / "build" / "bin" / "ddprun"))
JOB = [DDPRUN, "--standalone", "--nproc-per-node=3", "--no-python", support.MNIST, "--epochs=1"]
BENCH_STEP = os.path.join(os.path.dirname(DDPRUN), "bench-step")
UNSHARE = ["unshare", "--map-root-user", "--mount"]


def in_namespace(mount, *command):
    return support.run(*UNSHARE, "sh", "-c", f'{mount} && exec "$@"', "sh", *command)


def with_dev_shm(size, *command):
    return in_namespace(f"mount -t tmpfs -o size={size} tmpfs /dev/shm", *command)


def with_memory_left(kib, folder, *command):
    """Runs a command that reads so much memory left on the host."""
    path = os.path.join(folder, "meminfo")
    with open(path, "w") as file:
        file.write(f"MemAvailable: {kib} kB\n")
    return in_namespace(f"mount --bind {path} /proc/meminfo", *command)


def why_not():
    try:
        done = in_namespace("mount -t tmpfs tmpfs /dev/shm && mount --bind /proc/uptime /proc/meminfo", "true")
    except FileNotFoundError:
        return "no unshare program here"
    return done.stderr.strip() if done.returncode != 0 else None


class MnistSharedMemory(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.data = ["--data", folder.name]
        digits.write_subset(folder.name, train=60, held_out=10)

    def test_says_once_what_is_missing_for(self):
        for kib, purpose in ((512, "the ranks' control area"), (8 << 10, "sums")):
            with self.subTest(purpose=purpose):
                done = with_memory_left(kib, self.folder, *JOB, *self.data)
                self.assertEqual(done.returncode, 1, done.stderr)
                said = [line for line in done.stderr.splitlines()
                        # Quoted in the report.
                        if "shared memory" in line and not line.startswith(" ")]
                self.assertEqual(len(said), 1, done.stderr)
                self.assertRegex(said[0], rf"\d+ MiB of shared memory needed for {purpose}, {kib >> 10} MiB of memory are left: ")
                self.assertNotIn("mnist: ", done.stderr)

    def test_needs_no_dev_shm(self):
        for size in "4k", "1m":
            with self.subTest(size=size):
                done = with_dev_shm(size, *JOB, *self.data)
                self.assertEqual(done.returncode, 0, done.stderr)


class ResNet(unittest.TestCase):
    """The program of bench/step takes its orders from one file a rank, and answers in another
    one."""

    def losses(self, ranks, *mounted):
        """By rank, of the third step."""
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(ranks):
                with open(f"{folder}/orders.{rank}", "w") as file:
                    file.write("resnet18 views 0 3\n")
            done = with_dev_shm(*mounted, DDPRUN, "--standalone", f"--nproc-per-node={ranks}", "--no-python", BENCH_STEP, folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            answers = []
            for rank in range(ranks):
                with open(f"{folder}/answers.{rank}") as file:
                    answers.append(json.load(file)["loss"])
            return answers

    def test_trains_with_little_dev_shm(self):
        for ranks in 2, 4:
            with self.subTest(ranks=ranks):
                losses = self.losses(ranks, "1m")
                self.assertTrue(all(0 < loss < 10 for loss in losses), losses)
                if ranks == 2:
                    self.assertEqual(losses, self.losses(ranks, "1g"))


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print("skipped: no mount namespace to be had:", reason)
        sys.exit(77)
    unittest.main()
