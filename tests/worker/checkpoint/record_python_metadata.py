#!/usr/bin/env python3
"""Writes python_metadata.pkl beside this file, for tests that have no PyTorch. It is the
`.metadata` of a distributed checkpoint of four ranks of stock PyTorch. Run it with
.venv/bin/python."""

import multiprocessing
import os
import pathlib
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def save(rank):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=4)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 2))
    mesh = init_device_mesh("cpu", (4,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    net(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    model, optim = get_state_dict(net, optimizer)
    dcp.save({"model": model, "optim": optim}, checkpoint_id="run")
    dist.destroy_process_group()


if __name__ == "__main__":
    target = pathlib.Path(__file__).resolve().with_name("python_metadata.pkl")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        ranks = [multiprocessing.get_context("fork").Process(target=save, args=(rank,)) for rank in range(4)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        shutil.copy("run/.metadata", target)
        os.chdir("/")
