"""Trains with Adam, whose state each rank keeps. With --zero, ZeroRedundancyOptimizer shards it
over the ranks.

    torchrun --standalone --nproc-per-node=4 examples/pytorch/zero.py --zero

build/bin/zero prints the same.
"""
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import twin


def say_bytes(adam, net):
    """Prints the bytes of Adam's numbers: for the parameters of each rank, and for all
    parameters."""
    mine = sum(state[name].nbytes for state in adam.state.values() for name in ("exp_avg", "exp_avg_sq"))
    of_ranks = [0] * dist.get_world_size()
    dist.all_gather_object(of_ranks, mine)
    twin.say(f"optimizer bytes a rank: {', '.join(map(str, of_ranks))} of {sum(2 * p.nbytes for p in net.parameters())}")


def main():
    options = twin.options_of(__doc__, data=False, zero=False, epochs=3, batch_size=16, width=64, lr=0.003)
    net = twin.made_net(5, options.width)
    model = DistributedDataParallel(net)
    if options.zero:
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=options.lr)
    else:
        optimizer = torch.optim.Adam(net.parameters(), lr=options.lr)
    samples = twin.made_set(2, 1600)
    sampler = DistributedSampler(samples)
    loader = DataLoader(samples, options.batch_size, sampler=sampler)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        twin.say_epoch(epoch, options.epochs, twin.train_epoch(loader, model, optimizer))
    twin.say_result(net, twin.made_set(3, 400), 64)
    say_bytes(optimizer.optim if options.zero else optimizer, net)
    del model  # before its group: PyTorch 2.11 can block otherwise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
