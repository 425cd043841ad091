"""PyTorch's side of bench/parallel: what bench/parallel.cc does, with Gloo.

    parallel_torch.py WAY BLOCKS WIDTH ROWS STEPS REAL_TIME

tensor: parallelize_module(). mesh: it and DistributedDataParallel. sharded: fully_shard(). local:
PostLocalSGDOptimizer. pipeline: Schedule1F1B. gpipe: ScheduleGPipe.
"""
import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WARM_UPS = 5
RATE = 1e-4
SCHEDULES = {"pipeline": Schedule1F1B, "gpipe": ScheduleGPipe}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def block_of(number, width):
    torch.manual_seed(1 + number)
    return Block(width)


def net_of(way, blocks, width):
    """The blocks of this rank."""
    mine = blocks // dist.get_world_size() if way in SCHEDULES else blocks
    first = mine * dist.get_rank() if way in SCHEDULES else 0
    return nn.Sequential(*(block_of(number, width) for number in range(first, first + mine)))


def loss_of(outputs, _=None):
    return outputs.square().mean()


def made(way, net):
    """The model, its optimizer, and this rank's place among those with other rows."""
    world = dist.get_world_size()
    copies = {"tensor": 1, "pipeline": 1, "gpipe": 1, "mesh": 2}.get(way, world)
    mesh = init_device_mesh("cpu", (copies, world // copies), mesh_dim_names=("data", "tensor"))
    model = net
    if way in ("tensor", "mesh"):
        parallelize_module(net, mesh["tensor"], {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()})
    if way == "mesh":
        model = DistributedDataParallel(net, device_mesh=mesh["data"], gradient_as_bucket_view=True)
    if way == "sharded":
        for block in net:
            fully_shard(block, mesh=mesh["data"])
        fully_shard(net, mesh=mesh["data"])
    if way == "local":
        model = DistributedDataParallel(net, gradient_as_bucket_view=True)
        state = PostLocalSGDState(None, None, start_localSGD_iter=1, post_local_gradient_allreduce=False)
        model.register_comm_hook(state, post_localSGD_hook)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    if way == "local":
        optimizer = PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=4, warmup_steps=1))
    return model, optimizer, mesh.get_local_rank("data")


def plain_pass(model):
    def one(inputs):
        loss = loss_of(model(inputs))
        loss.backward()
        return loss
    return one


def pipeline_pass(model, schedule_of):
    stage = PipelineStage(model, dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    schedule = schedule_of(stage, 4, loss_of)

    def one(inputs):
        losses = []
        given = (inputs,) if stage.is_first else ()
        schedule.step(*given, target=inputs if stage.is_last else None, losses=losses, return_outputs=False)
        return torch.stack(losses).mean() if losses else None
    return one


def own_bytes():
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def go_first():
    """Puts all threads of this process before those of other programs."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(thread), os.SCHED_RR, os.sched_param(1))


def train(way, blocks, width, rows, steps, real_time):
    """Seconds of a step, the last loss, and the memory at the end."""
    model, optimizer, place = made(way, net_of(way, blocks, width))
    pass_of = pipeline_pass(model, SCHEDULES[way]) if way in SCHEDULES else plain_pass(model)
    torch.manual_seed(2 + place)
    inputs = torch.randn(rows, width)
    for number in range(WARM_UPS + steps):
        if number == WARM_UPS - 1 and real_time:
            go_first()
        if number == WARM_UPS:
            dist.barrier()
            start = time.perf_counter()
        optimizer.zero_grad()
        loss = pass_of(inputs)
        optimizer.step()
        value = 0 if loss is None else loss.item()
    dist.barrier()
    seconds, memory = (time.perf_counter() - start) / steps, own_bytes()
    if way in SCHEDULES:  # the last rank has the loss
        total = torch.tensor(value, dtype=torch.double)
        dist.all_reduce(total)
        value = total.item()
    return seconds, value, memory


def main():
    way, *numbers = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    blocks, width, rows, steps, real_time = map(int, numbers)
    train("tensor", 1, width, rows, 1, real_time=0)
    before = own_bytes()
    seconds, loss, after = train(way, blocks, width, rows, steps, real_time)
    if dist.get_rank() == 0:
        print(f"{seconds:.6f} {loss:.9f} {after - before}", flush=True)
    dist.barrier()
    os._exit(0)  # while a process ends, PyTorch's own threads may abort it


if __name__ == "__main__":
    main()
