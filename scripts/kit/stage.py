"""The common parts of stages: their tools, and how they tell figures to the run."""

import json
import os
import subprocess
import sys

from kit.machine import ROOT


# A shell that makes each rank a host of its own.
TWO_HOSTS = ("sh", "-c", 'NCCL_HOSTID=r$RANK exec "$@"', "-")
# The one GPU, once for each of two ranks.
GPU_TWICE = {"CUDA_VISIBLE_DEVICES": "0,0", "NCCL_NET": "Socket"}


class Broken(Exception):
    """A program of the stage did not do what it should."""


def tell(**said):
    """One line for the run: `figure={…}` or `facts={…}`."""
    print(json.dumps(said, ensure_ascii=False), flush=True)


def figure(what, ours, pytorch=None, **more):
    """Tells a figure; judge.py says what `unit`, `goal` and `gpu_only` mean."""
    tell(figure={"what": what, "ours": ours, "pytorch": pytorch, **more})


def absent(what, why):
    """Tells a figure that could not be had. It never counts as passed."""
    tell(figure={"what": what, "absent": why})


class Tools:
    """The programs of a stage, and its device."""

    def __init__(self, programs, python, dry):
        self.programs, self.python, self.dry = programs, python, dry
        self.device = "cpu" if dry else "cuda"

    def program(self, name):
        return os.path.join(self.programs, name)

    def file(self, name):
        """A file of the kit, by its path in the project."""
        return str(ROOT / name)

    def launch(self, *command, flags=(), workers=1):
        """The command line that starts workers under ddprun."""
        return [self.program("ddprun"), "--standalone", f"--nproc-per-node={workers}",
                "--shutdown-timeout=1", *flags, *command]

    def of_ours(self, name, *arguments, flags=(), workers=1):
        command = ["--no-python", self.program(name), *arguments]
        return self.launch(*command, flags=flags, workers=workers)

    def of_pytorch(self, script, *arguments, flags=(), workers=1):
        command = ["--no-python", self.python, self.file(script), *arguments]
        return self.launch(*command, flags=flags, workers=workers)

    def ranks_on_one_gpu(self, *command):
        """The command line for two ranks on one device. NCCL 2.28 refuses two on a GPU, unless it
        takes them for two hosts."""
        if self.dry:
            return self.launch("--no-python", *command, workers=2)
        return self.launch("--no-python", *TWO_HOSTS, *command, flags=["--virtual-local-rank"],
                           workers=2)

    def output(self, command, ok=(0,), **changes):
        """Returns what the command prints. Its stderr goes to the log. `ok` has the exit codes
        with which it may end."""
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, text=True, check=False,
                              env={**os.environ, **changes})
        if done.returncode not in ok:
            sys.stderr.write(done.stdout)
            raise Broken(f"{os.path.basename(str(command[0]))} ended with {done.returncode}")
        return done.stdout
