"""PyTorch's side of bench/sharded: what bench/sharded.cc does, with fully_shard over Gloo.

    sharded_torch.py LAYERS WIDTH BATCH STEPS
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WARM_UPS = 3


def main():
    layers, width, batch_size, steps = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(1)
    net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    torch.manual_seed(2 + dist.get_rank())
    batch = torch.randn(batch_size, width)
    seconds = []
    for number in range(WARM_UPS + steps):
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        x = batch
        for layer in net:
            x = torch.tanh(layer(x))
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        if number >= WARM_UPS:
            seconds.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        print(f"{statistics.median(seconds):.6f} {loss.item():.9f}", flush=True)
    dist.barrier()
    os._exit(0)  # while a process ends, PyTorch's own threads may abort it


if __name__ == "__main__":
    main()
