"""Does as join_zero_trainer.cc, with PyTorch's DistributedDataParallel, Join and
ZeroRedundancyOptimizer over Gloo."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from parity_trainer import batch_of, device_of, hash_of, made_net, print_ends

BATCHES = [10, 13, 7]
STEPS = 50
LISTS = 200
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 1e-3}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.8, "nesterov": True}),
    "adam": (torch.optim.Adam, {}),
    "adam_decay": (torch.optim.Adam, {"weight_decay": 0.01, "betas": (0.8, 0.95), "eps": 1e-6}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.02}),
}


def fused_on_gpus():
    """Arguments of an optimizer. On GPUs ours take the fused kernels."""
    return {"fused": True} if device_of() == "cuda" else {}


def step(parallel, optimizer, number, aside):
    optimizer.zero_grad()
    x, y = batch_of(1000 * number + dist.get_rank())
    torch.nn.functional.cross_entropy(parallel(x, aside), y).backward()
    optimizer.step()


def uses_aside(mode, number):
    """The rank that comes last always does. PyTorch counts the parameters of a joined rank's last
    pass, and we do not (docs/join.md)."""
    return "unused" not in mode or dist.get_rank() == 1 or number % 4 == 2


def train_joined(mode):
    net = made_net("batch_norm")
    parallel = DistributedDataParallel(net, find_unused_parameters="unused" in mode, gradient_as_bucket_view=True)
    if "hook" in mode:
        parallel.register_comm_hook(None, default_hooks.allreduce_hook)
    joined = [parallel]
    if "adam" in mode or "scatter" in mode:
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01, **fused_on_gpus())
    elif "zero" in mode:
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01, **fused_on_gpus())
        joined.append(optimizer)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, **fused_on_gpus())
    with Join(joined, divide_by_initial_world_size="active" not in mode):
        for number in range(BATCHES[dist.get_rank()]):
            step(parallel, optimizer, number, uses_aside(mode, number))
    return f"{hash_of(net):016x}"


def train_optimizer(mode):
    kind, how = mode.rsplit("_", 1)
    cls, arguments = OPTIMIZERS[kind]
    arguments = {**arguments, **fused_on_gpus()}
    net = made_net("batch_norm")
    parallel = DistributedDataParallel(net, gradient_as_bucket_view=True)
    if how == "zero":
        optimizer = ZeroRedundancyOptimizer(net.parameters(), cls, lr=0.01, **arguments)
    else:
        optimizer = cls(net.parameters(), lr=0.01, **arguments)
    for number in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + number)
        step(parallel, optimizer, number, True)
    return f"{hash_of(net):016x}"


class Numbers:
    def __init__(self, seed):
        self.state = seed

    def below(self, limit):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self.state >> 33) % limit


def partitions():
    value = 0xCBF29CE484222325
    for seed in range(LISTS):
        numbers = Numbers(seed)
        counts = [[] for _ in range(1 + numbers.below(3))]
        for group in counts:
            for _ in range(1 + numbers.below(40)):
                limit = 5000 if numbers.below(5) == 0 else 12
                group.append(1 + numbers.below(limit))
        parameters = [[torch.nn.Parameter(torch.zeros(count)) for count in group] for group in counts]
        optimizer = ZeroRedundancyOptimizer([{"params": group} for group in parameters], torch.optim.SGD, lr=0.1)
        owners = optimizer._param_to_rank
        for group in parameters:
            for parameter in group:
                value = (value ^ owners[parameter]) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


def end_of(mode):
    if mode == "partition":
        return partitions()
    return train_joined(mode) if mode.startswith("join") else train_optimizer(mode)


if __name__ == "__main__":
    print_ends(end_of)
