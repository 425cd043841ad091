"""The common parts of the trainer scripts beside this file. They are a problem of fixed numbers, a
plain training loop, a death on demand, and the closing lines.

Nothing here knows who launched the script. Every draw has a seed and the test sets
OMP_NUM_THREADS=1, so equal launches give equal digits.
"""

import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

ROWS, FEATURES, HIDDEN = 96, 8, 16
BATCH = 8  # rows of one rank in one step: 6 steps of 2 ranks are an epoch
EXIT_CODE_OF_DEATH = 9
LOOKS = 3  # in a row: a thread that only waited for the interpreter's lock runs between two of them
LOOKS_MAX = 1000
BETWEEN_LOOKS = 0.01  # seconds in which the interpreter's lock is free


def data():
    """A smooth function of random points, the same on every rank."""
    generator = torch.Generator().manual_seed(7)
    points = torch.randn(ROWS, FEATURES, generator=generator)
    return TensorDataset(points, torch.sin(points.sum(dim=1, keepdim=True)))


def network():
    """A small net with the same weights on every rank."""
    torch.manual_seed(1)
    first, second = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(HIDDEN, 1))


def train(model, optimizer, epochs):
    """Trains on this rank's rows, in order; the mean over the ranks of the last step's loss."""
    points, values = data().tensors
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    for _ in range(epochs):
        for batch, wanted in zip(points[mine].split(BATCH), values[mine].split(BATCH)):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), wanted)
            loss.backward()
            optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def attempt():
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def die_once():
    """Rank 1 is gone without a word, in the first attempt only."""
    if int(os.environ["RANK"]) == 1 and attempt() == 0:
        os._exit(EXIT_CODE_OF_DEATH)


def wait_for_the_kill():
    """Says in FOLDER who this rank is. With --killed-once the first attempt then waits for its
    end."""
    place = f"{sys.argv[1]}/rank_{os.environ['RANK']}.{attempt()}"
    with open(place + ".tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(place + ".tmp", place)
    while attempt() == 0:
        signal.pause()


def gloo_is_idle():
    """Whether each thread of ProcessGroupGloo waits for work (or for the interpreter's lock)."""
    for thread in pathlib.Path("/proc/self/task").iterdir():
        try:
            name, state = (thread / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        if name.startswith("pt_gloo") and state.split()[0] != "S":
            return False
    return True


def let_gloo_finish():
    """Waits until Gloo's threads have freed the tensors of the last collective. One that is still
    at it when the interpreter ends aborts the process (tests/jobs/pytorch_exit.py)."""
    looks = 0
    for _ in range(LOOKS_MAX):
        time.sleep(BETWEEN_LOOKS)
        looks = looks + 1 if gloo_is_idle() else 0
        if looks == LOOKS:
            return


def report(loss):
    """The closing lines, by rank 0 in one piece. Refuses a job of other than two ranks."""
    let_gloo_finish()
    if "--killed-once" in sys.argv:
        wait_for_the_kill()
    worlds = {int(os.environ["WORLD_SIZE"])}
    if dist.is_initialized():  # RPC has no process group
        worlds.add(dist.get_world_size())
    if worlds != {2}:
        raise RuntimeError("expected two ranks")
    if int(os.environ["RANK"]) == 0:
        sys.stdout.write(f"attempt={attempt()}\nfinal_loss={loss!r}\n")
        sys.stdout.flush()
