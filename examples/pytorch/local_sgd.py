"""Trains with SGD. Workers average their gradients at first, and then their parameters every few
steps (post-local SGD). With --levels pairs of workers average often, and all of them seldom.

    torchrun --standalone --nproc-per-node=4 examples/pytorch/local_sgd.py --levels

build/bin/local_sgd prints the same.
"""
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import twin


def averager_of(options, workers):
    if options.levels and workers > 2 and workers % 2 == 0:
        levels = OrderedDict([(options.period, 2), (4 * options.period, workers)])
        return HierarchicalModelAverager(levels, options.warmup_steps)
    return PeriodicModelAverager(options.period, options.warmup_steps)


def main():
    options = twin.options_of(__doc__, data=False, levels=False, warmup_steps=20, period=4, epochs=3, batch_size=16, width=64, lr=0.1)
    net = twin.made_net(2, options.width)
    model = DistributedDataParallel(net)
    state = PostLocalSGDState(None, None, options.warmup_steps, post_local_gradient_allreduce=False)
    model.register_comm_hook(state, post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9), averager_of(options, dist.get_world_size()))
    samples = twin.made_set(2, 1600)
    sampler = DistributedSampler(samples)
    loader = DataLoader(samples, options.batch_size, sampler=sampler)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        twin.say_epoch(epoch, options.epochs, twin.train_epoch(loader, model, optimizer))
    average_parameters(net.parameters(), dist.group.WORLD)  # the last steps were each worker's own
    twin.say_result(net, twin.made_set(3, 400), 64)
    del model  # before its group: PyTorch 2.11 can block otherwise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
