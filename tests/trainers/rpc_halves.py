"""torch.distributed.rpc: rank 0 trains a net whose first half lives on rank 1."""

import os

import torch
import torch.distributed.autograd as dist_autograd
from torch import nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

import tiny


class FirstHalf(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(tiny.FEATURES, tiny.HIDDEN)

    def forward(self, points):
        return torch.tanh(self.layer(points))

    def parameter_rrefs(self):
        return [rpc.RRef(parameter) for parameter in self.parameters()]


def train():
    first = rpc.remote("worker1", FirstHalf)
    torch.manual_seed(2)
    second = nn.Linear(tiny.HIDDEN, 1)
    remote, local = first.rpc_sync().parameter_rrefs(), map(rpc.RRef, second.parameters())
    optimizer = DistributedOptimizer(torch.optim.SGD, [*remote, *local], lr=0.1)
    points, values = tiny.data().tensors
    for batch, wanted in zip(points.split(tiny.BATCH), values.split(tiny.BATCH)):
        with dist_autograd.context() as context:
            loss = nn.functional.mse_loss(second(first.rpc_sync().forward(batch)), wanted)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
    return loss.item()


def main():
    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    loss = train() if rank == 0 else None
    tiny.report(loss)
    rpc.shutdown()


if __name__ == "__main__":
    main()
