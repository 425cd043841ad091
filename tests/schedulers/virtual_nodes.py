"""The campaigns' work on the login node of a Slurm of four virtual nodes
(tests/schedulers/cluster). Only the standard library."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import uuid

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "campaigns"))

from campaign import DDPRUN, SKIPPED, VENV, free_port  # noqa: E402

CLUSTER = pathlib.Path(__file__).resolve().parent / "cluster"
NODES = 4
STEP_S = 300  # four copies of PyTorch on a machine that does much else
RUN = "DDPRUN_CAMPAIGN_RUN"  # marks what one job of Slurm's has started


def lacking():
    """Why no cluster can be had here, or None."""
    if os.geteuid() != 0:
        return "virtual nodes need root"
    absent = [program for program in ("slurmctld", "slurmd", "srun", "ip", "unshare", "setpriv") if not shutil.which(program)]
    return f"not installed: {', '.join(absent)}" if absent else None


def results_of(words, **variables):
    """Runs a program on the login node of a cluster of its own. Returns (its exit code, the JSON
    lines that it said). None where such a cluster cannot be had here, and it has said why. A
    cluster ends with whoever waits for it."""
    cluster = subprocess.Popen([CLUSTER, *words], stdout=subprocess.PIPE, text=True, env=os.environ | variables)
    try:
        out, _ = cluster.communicate()
    finally:
        cluster.terminate()
        cluster.wait()
    if cluster.returncode == SKIPPED:
        return None
    return cluster.returncode, [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def tell(**result):
    """A line of results_of()."""
    print(json.dumps(result), flush=True)


def step(*words, nodes=NODES):
    """Runs a command once on each node: (the finished process, seconds)."""
    begin = time.monotonic()
    done = subprocess.run(["srun", f"--nodes={nodes}", "--ntasks-per-node=1", *map(str, words)], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=STEP_S)
    return done, time.monotonic() - begin


def launcher(name, nodes=NODES):
    """The words that start a launcher on each node: "ddprun", "ddprun with flags" or "torchrun with
    flags". The latter need a first node and a port that somebody has found for them."""
    program = str(VENV / "torchrun") if name.startswith("torchrun") else DDPRUN
    if not name.endswith("with flags"):
        return [program]
    return [program, f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-id={uuid.uuid4().hex}", f"--rdzv-endpoint=node01:{free_port()}"]
