"""A training script for launchers of other people: launched.py plain|accelerate|fabric [--fail]

Rank 0 prints the loss, and which launcher's variables it sees. With --fail rank 1 raises an error.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

import tiny

EPOCHS = 2


def with_plain():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(tiny.network())
    loss = tiny.train(model, torch.optim.AdamW(model.parameters(), lr=0.01), EPOCHS)
    del model
    return loss


def with_accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    network = tiny.network()
    model, optimizer = accelerator.prepare(network, torch.optim.AdamW(network.parameters(), lr=0.01))
    loss = tiny.train(model, optimizer, EPOCHS)
    del model, optimizer
    accelerator.free_memory()
    return loss


def with_fabric():
    from lightning.fabric import Fabric

    fabric = Fabric()  # `fabric run` says the rest, and has launched it
    network = tiny.network()
    model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=0.01))
    points, values = tiny.data().tensors
    mine = slice(fabric.global_rank, None, fabric.world_size)
    for _ in range(EPOCHS):
        for batch, wanted in zip(points[mine].split(tiny.BATCH), values[mine].split(tiny.BATCH)):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), wanted)
            fabric.backward(loss)
            optimizer.step()
    loss = fabric.all_reduce(loss.detach(), reduce_op="mean").item()
    del model, optimizer
    return loss


def train(kind, fail=False):
    """This rank's part; returns the mean loss of the ranks."""
    loss = {"plain": with_plain, "accelerate": with_accelerate, "fabric": with_fabric}[kind]()
    tiny.let_gloo_finish()
    if dist.get_world_size() != 2:
        raise RuntimeError("expected two ranks")
    if fail:
        if dist.get_rank() == 1:
            raise ValueError("planned")
        signal.pause()  # a collective would fail by rank 1's end, and might end this rank first
    if dist.get_rank() == 0:
        launcher = "ddprun" if "DDPRUN_JOB" in os.environ else "torchrun"
        sys.stdout.write(f"launcher={launcher}\nfinal_loss={loss!r}\n")
        sys.stdout.flush()
    dist.destroy_process_group()
    return loss


@record
def main():
    train(sys.argv[1], "--fail" in sys.argv)


if __name__ == "__main__":
    main()
