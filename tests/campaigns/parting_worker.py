"""A stock DDP + Gloo script whose ranks part in silence.

  parting_worker.py FIFO PARTS_AFTER STEPS KIND[,KIND…]

Each kind is a model with an optimizer of its own. All ranks are equal up to step PARTS_AFTER. From
then on the last rank, or every one, has something else. After STEPS steps it opens FIFO, which
blocks until the test opens it as well. `what_is_said()` is the sentence on a kind.
"""

import os
import sys

KINDS = ("weight", "momentum", "left_out", "clean")
A_BIT = 1 << 20


def rank_text(ranks):
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"


def what_is_said(kind, every, parts_after, hostname, world_size):
    """At the first check after it. Three ranks or more."""
    step = (parts_after // every + 1) * every
    others = f"; {rank_text(range(world_size - 1))} agree"
    if kind == "left_out":
        names = "Linear.weight (left out of DDP) and Linear.bias (left out of DDP)"
        return (f"{rank_text(range(world_size))} on {hostname}: {names} since step {step}; "
                "no majority tells who is right")
    names = {"weight": "0.weight", "momentum": "0.weight and momentum_buffer of 0.weight"}[kind]
    return f"rank {world_size - 1} on {hostname}: {names} since step {step}{others}"


class Model:
    def __init__(self, kind):
        self.kind = kind
        self.net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 4)))
        self.head = torch.nn.Linear(4, 2)  # nobody has put it under DDP
        parameters = [*self.net.parameters(), *(self.head.parameters() if kind == "left_out" else ())]
        self.optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.0 if kind == "left_out" else 0.9)

    def step(self, parts):
        output = self.net(torch.randn(2, 8))
        if self.kind == "left_out":
            output = self.head(output * (1 + rank * parts))
        self.optimizer.zero_grad()
        output.square().mean().backward()
        self.optimizer.step()

    def part(self):
        weight = self.net.module[0].weight
        if rank == world_size - 1 and self.kind in ("weight", "momentum"):
            state = self.optimizer.state[weight]
            tensor = weight.data if self.kind == "weight" else state["momentum_buffer"]
            tensor.view(torch.int32)[1, 3] ^= A_BIT


def main(fifo, parts_after, steps, kinds):
    torch.manual_seed(1)
    models = [Model(kind) for kind in kinds]
    for step in range(1, steps + 1):
        for model in models:
            model.step(parts=step > parts_after)
            if step == parts_after:
                model.part()
    open(fifo).close()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # PyTorch's own exit aborts now and then, under any launcher


if __name__ == "__main__":
    import torch
    import torch.distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","))
