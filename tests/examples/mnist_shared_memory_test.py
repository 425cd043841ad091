"""Too little shared memory is said in one line a job, whatever the number of workers. In a mount namespace with a small
/dev/shm of its own, which needs root or unprivileged user namespaces.
"""

import os
import subprocess
import sys
import tempfile
import unittest

import support

DDPRUN = os.environ.get("DDPRUN", str(support.ROOT / "build" / "bin" / "ddprun"))
JOB = [DDPRUN, "--standalone", "--nproc-per-node=3", "--no-python", support.MNIST, "--epochs=1"]
UNSHARE = ["unshare", "--map-root-user", "--mount"]


def in_small_shm(size, *command):
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    return support.run(*UNSHARE, "sh", "-c", mount, "sh", *command)


def why_not():
    try:
        done = in_small_shm("4k", "true")
    except FileNotFoundError:
        return "no unshare program here"
    return done.stderr.strip() if done.returncode != 0 else None


class MnistSharedMemory(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.data = ["--data", folder.name]
        support.write_subset(folder.name, train=60, held_out=10)

    def test_says_once_what_is_missing_for(self):
        for size, purpose in (("512k", "the ranks' control area"), ("8m", "the gradient buckets")):
            with self.subTest(purpose=purpose):
                done = in_small_shm(size, *JOB, *self.data)
                self.assertEqual(done.returncode, 1, done.stderr)
                said = [line for line in done.stderr.splitlines()
                        if "shared memory" in line and not line.startswith(" ")]  # quoted in the report
                self.assertEqual(len(said), 1, done.stderr)
                self.assertIn(f"of shared memory needed for {purpose}, /dev/shm has ", said[0])
                self.assertIn("--shm-size", said[0])
                self.assertNotIn("mnist: ", done.stderr)

    def test_is_content_with_enough(self):
        done = in_small_shm("64m", *JOB, *self.data)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print("skipped: no mount namespace to be had:", reason)
        sys.exit(77)
    unittest.main()
