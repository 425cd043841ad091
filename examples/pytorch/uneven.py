"""Ranks with unlike numbers of batches, 10, 13, 7, 10, 13, …, with PyTorch's Join.

    torchrun --standalone --nproc-per-node=3 examples/pytorch/uneven.py

build/bin/uneven prints the same.
"""
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import twin

BATCHES = 10, 13, 7


def main():
    options = twin.options_of(__doc__, data=False, batch_size=16, lr=0.1)
    of_ranks = [BATCHES[rank % len(BATCHES)] for rank in range(dist.get_world_size())]
    # Each rank has samples of its own.
    samples = twin.made_set(100 + dist.get_rank(), of_ranks[dist.get_rank()] * options.batch_size)
    net = twin.made_net(1, 64)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9)
    loader = DataLoader(samples, options.batch_size)
    with Join([model]):
        loss = twin.train_epoch(loader, model, optimizer)
    twin.say(f"batches of the ranks: {', '.join(map(str, of_ranks))}")
    twin.say_epoch(0, 1, loss)
    twin.say_result(net, twin.made_set(3, 400), 64)
    del model  # before its group: PyTorch 2.11 can block otherwise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
