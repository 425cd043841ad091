"""Trains a model of the next word, of which each worker has a part of every layer. With --sequence
a worker has a part of the sequence between the layers, too.

    torchrun --standalone --nproc-per-node=4 examples/pytorch/tensor_parallel.py --sequence

build/bin/tensor_parallel prints the same.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module

import twin


class Net(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        return self.head(self.norm(x + self.down(torch.relu(self.up(x))))).flatten(0, 1)


def split(net, sequence):
    between = Shard(1) if sequence else Replicate()
    plan = {"words": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "up": ColwiseParallel(input_layouts=between),
            "down": RowwiseParallel(output_layouts=between),
            "head": ColwiseParallel(input_layouts=between, use_local_output=False)}
    if sequence:
        plan["norm"] = SequenceParallel()
    parallelize_module(net, init_device_mesh("cpu", (dist.get_world_size(),)), plan)


def text_of(options, step):
    """A text in which a word says which one comes next."""
    torch.manual_seed(100 + step)
    text = [torch.randint(options.words, (options.batch_size, 1))]
    for _ in range(options.length):
        text.append((text[-1] * 5 + 3).remainder(options.words))
    return torch.cat(text, 1)


def own_numbers(net):
    return sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in net.parameters())


def main():
    options = twin.options_of(__doc__, data=False, sequence=False, steps=60, batch_size=8, length=16, words=64, width=32, lr=1.0)
    torch.manual_seed(1)
    net = Net(options.words, options.width)
    split(net, options.sequence)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, foreach=False)
    for step in range(options.steps):
        text = text_of(options, step)
        optimizer.zero_grad()
        with loss_parallel():
            loss = nn.functional.cross_entropy(net(text[:, :-1]), text[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        if (step + 1) % 10 == 0:
            twin.say(f"step {step + 1} loss={loss.item()}")
    twin.say(f"numbers of a worker: {own_numbers(net)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
