"""A run that was killed after any of its epochs, and resumed, ends with the weights of an
undisturbed one. It has 1, 2, 3 and 4 workers, or starts from a checkpoint that Python has written.

DDPRUN and MNIST name the programs.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

import digits
import python_start
import support

DDPRUN = os.environ.get("DDPRUN", str(support.ROOT / "build" / "bin" / "ddprun"))
EPOCHS = 5


class MnistResume(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        digits.write_subset(folder.name, train=160, held_out=40)

    def command(self, workers, checkpoint, *more):
        launch = [DDPRUN, "--standalone", f"--nproc-per-node={workers}", "--no-python"]
        return [str(word) for word in (*launch, support.MNIST, f"--epochs={EPOCHS}", "--data", self.folder, "--batch-size=16",
                                       "--checkpoint", checkpoint, *more)]

    def finish(self, workers, checkpoint, *more):
        done = support.run(*self.command(workers, checkpoint, *more))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def kill_after(self, epoch, workers, checkpoint, *more):
        """Kills the whole job once the checkpoint of the epoch is there. The epoch after which it
        was."""
        with subprocess.Popen(self.command(workers, checkpoint, *more), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True, env=support.environment(), start_new_session=True) as job:
            for line in job.stdout:
                said = re.match(rf"epoch (\d)/{EPOCHS} loss=", line)
                if said and int(said[1]) >= epoch:
                    os.killpg(job.pid, signal.SIGKILL)
                    return int(said[1])
        self.fail(f"no epoch after {epoch - 1}")

    def check_resumed_after_every_epoch(self, workers, start=None):
        """One run, killed after each of its epochs and resumed each time, beside an undisturbed
        one."""
        def path(name):
            target = self.folder / f"{workers}-{name}.pt"
            if start is not None:
                target.write_bytes(start.read_bytes())
            return target

        resume = ["--resume"] if start is not None else []
        undisturbed = self.finish(workers, path("undisturbed"), *resume)
        checkpoint = path("killed")
        epoch = 0 if start is None else 1
        while epoch < EPOCHS:
            # A kill that comes late may lose an epoch: then it is the next one that is seen.
            epoch = self.kill_after(epoch + 1, workers, checkpoint, *resume)
            resume = ["--resume"]
        resumed = self.finish(workers, checkpoint, *resume)
        self.assertRegex(resumed, rf"resumed after epoch ({EPOCHS - 1}|{EPOCHS})")
        self.assertEqual(support.value_of("weights", resumed), support.value_of("weights", undisturbed))
        return undisturbed

    def test_one_and_two_workers(self):
        for workers in (1, 2):
            self.check_resumed_after_every_epoch(workers)

    def test_three_workers(self):
        self.check_resumed_after_every_epoch(3)

    def test_four_workers(self):
        self.check_resumed_after_every_epoch(4)

    def test_from_a_checkpoint_of_python(self):
        python = support.python_with_torch()
        if python is None:
            self.skipTest("no Python with torch here")
        start = self.folder / "python.pt"
        python_start.write(python, "mnist", start)
        undisturbed = self.check_resumed_after_every_epoch(3, start)
        self.assertIn("resumed after epoch 1 ('module.' was stripped from its keys)", undisturbed)

    def test_on_another_number_of_workers(self):
        self.kill_after(2, 3, self.folder / "run.pt")
        self.assertIn("world of 2", self.finish(2, self.folder / "run.pt", "--resume"))


if __name__ == "__main__":
    unittest.main()
