"""Too little memory for what the ranks share is said in one line a job, whatever the number of workers; the size of /dev/shm does
not matter. In a mount namespace with a /proc/meminfo and a /dev/shm of its own, which needs root or unprivileged user namespaces.
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


def in_namespace(mount, *command):
    return support.run(*UNSHARE, "sh", "-c", f'{mount} && exec "$@"', "sh", *command)


def with_dev_shm(size, *command):
    return in_namespace(f"mount -t tmpfs -o size={size} tmpfs /dev/shm", *command)


def with_memory_left(kib, folder, *command):
    """What the host has left, as the job reads it."""
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
        support.write_subset(folder.name, train=60, held_out=10)

    def test_says_once_what_is_missing_for(self):
        for kib, purpose in ((512, "the ranks' control area"), (8 << 10, "sums")):
            with self.subTest(purpose=purpose):
                done = with_memory_left(kib, self.folder, *JOB, *self.data)
                self.assertEqual(done.returncode, 1, done.stderr)
                said = [line for line in done.stderr.splitlines()
                        if "shared memory" in line and not line.startswith(" ")]  # quoted in the report
                self.assertEqual(len(said), 1, done.stderr)
                self.assertRegex(said[0], rf"\d+ MiB of shared memory needed for {purpose}, {kib >> 10} MiB of memory are left: ")
                self.assertNotIn("mnist: ", done.stderr)

    def test_needs_no_dev_shm(self):
        for size in "4k", "1m":
            with self.subTest(size=size):
                done = with_dev_shm(size, *JOB, *self.data)
                self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print("skipped: no mount namespace to be had:", reason)
        sys.exit(77)
    unittest.main()
