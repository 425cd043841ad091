"""A worker of mnist is killed in epoch 2. The job goes on from its checkpoint and ends with the
weights of an undisturbed run.

DDPRUN and MNIST name the programs. The launcher may be any that takes torchrun's flags:
DDPRUN=.venv/bin/torchrun works.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import digits
import support

sys.path.insert(0, str(support.ROOT / "tests" / "jobs"))
import machine  # noqa: E402  (found by the line above)

DDPRUN = os.environ.get("DDPRUN", str(support.ROOT / "build" / "bin" / "ddprun"))
LAUNCH = [DDPRUN, "--standalone", "--nproc-per-node=2", "--max-restarts=1", "--no-python"]
MARKER = "DDPRUN_TEST_JOB"


def environment_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def processes_of(job, *variables):
    """Pids of the job's processes that have all the variables, given as NAME=value."""
    wanted = {f"{MARKER}={job}".encode(), *(variable.encode() for variable in variables)}
    pids = [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if wanted <= set(environment_of(pid))]


class MnistRestart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        digits.write_subset(folder.name, train=720, held_out=100)

    def run_job(self, name, kill_rank=None, program=support.MNIST):
        """The job's stdout; it must succeed. `kill_rank` gets SIGKILL at the first line of epoch
        2."""
        flags = ["--epochs=3", "--data", self.folder, "--checkpoint", self.folder / f"{name}.pt"]
        job = f"{os.getpid()}-{name}"
        with tempfile.TemporaryFile() as errors, subprocess.Popen(
                [str(word) for word in [*LAUNCH, program, *flags]], stdout=subprocess.PIPE, stderr=errors, text=True,
                env=support.environment(**{MARKER: job})) as process:
            watchdog = threading.Timer(support.DEADLINE, process.kill)
            watchdog.start()
            try:
                output = self.read_and_kill(process, job, kill_rank)
                code = process.wait()
            finally:
                watchdog.cancel()
                process.kill()
            errors.seek(0)
            diagnosis = output + errors.read().decode()
        self.assertEqual(code, 0, diagnosis)
        self.assertEqual(processes_of(job), [], "processes are left")
        return output

    def read_and_kill(self, process, job, kill_rank):
        lines = []
        for line in process.stdout:
            lines.append(line)
            if kill_rank is not None and line.startswith("epoch 2/3 step"):
                victims = processes_of(job, f"RANK={kill_rank}")
                self.assertEqual(len(victims), 1)
                os.kill(victims[0], signal.SIGKILL)
                kill_rank = None
        self.assertIsNone(kill_rank, "epoch 2 never began:\n" + "".join(lines))
        return "".join(lines)

    def test_standbys_take_over(self):
        """They wait in bootstrap(); when a worker is killed they are the workers of the next
        attempt."""
        job = f"{os.getpid()}-standby"
        flags = ["--epochs=100000", "--data", self.folder]
        with subprocess.Popen([str(word) for word in [*LAUNCH, support.MNIST, *flags]], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, env=support.environment(**{MARKER: job})) as process:
            self.addCleanup(process.kill)
            standbys = machine.wait_until(lambda: machine.waiting_standbys(processes_of(job)), "both standbys")
            (victim,) = processes_of(job, "RANK=1")
            os.kill(victim, signal.SIGKILL)
            machine.wait_until(lambda: set(processes_of(job, "TORCHELASTIC_RESTART_COUNT=1")) == standbys, "the second attempt")
            line = next(line for line in process.stderr if "lost" in line)
            self.assertRegex(line, r"rank 1 on \S+: killed by SIGKILL: detected .*, stopped .*, first line .*, first step .*; \d+\.\d+ s lost$")
            process.terminate()
        self.assertEqual(processes_of(job), [], "processes are left")

    def test_goes_on_from_the_checkpoint_to_the_same_weights(self):
        undisturbed = self.run_job("undisturbed")
        self.assertNotIn("resumed", undisturbed)
        for rank in (1, 0):
            with self.subTest(killed_rank=rank):
                restarted = self.run_job(f"killed-{rank}", kill_rank=rank)
                self.assertIn("resumed after epoch 1", restarted)
                for name in ("weights", "loss", "accuracy"):
                    self.assertEqual(support.value_of(name, restarted), support.value_of(name, undisturbed), name)
                self.assertRegex(restarted.splitlines()[-1], r"^accuracy=")

    def test_does_not_go_on_from_another_jobs_checkpoint(self):
        undisturbed = self.run_job("other")
        # In the first attempt rank 1 dies before rank 0 can have found the file.
        program = self.folder / "dies-at-first"
        program.write_text("#!/bin/sh\n"
                           f"[ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ] && exec {support.MNIST} \"$@\"\n"
                           "exit 1\n")
        program.chmod(0o755)
        restarted = self.run_job("other", program=program)
        self.assertIn("new weights", restarted)
        self.assertEqual(support.value_of("weights", restarted), support.value_of("weights", undisturbed))


if __name__ == "__main__":
    unittest.main()
