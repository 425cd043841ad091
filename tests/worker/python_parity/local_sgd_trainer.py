"""Does as local_sgd_trainer.cc, with PyTorch's post_localSGD_hook, PostLocalSGDOptimizer and model
averagers over Gloo."""

from collections import OrderedDict

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from parity_trainer import SGD, batch_of, hash_of, made_net, print_ends

STEPS, WARMUP_STEPS, PERIOD = 20, 5, 4


def averager_of(mode):
    ranks = dist.get_world_size()
    if mode != "levels":
        return PeriodicModelAverager(PERIOD, WARMUP_STEPS)
    levels = [(2, 2), (6, ranks)] if pair_of(ranks) < ranks else [(3, ranks)]
    return HierarchicalModelAverager(OrderedDict(levels), WARMUP_STEPS)


def pair_of(ranks):
    return 2 if ranks % 2 == 0 else ranks


def average(net):
    """Parameters and buffers of floating point; all ranks count as many batches."""
    tensors = (*net.parameters(), *(buffer for buffer in net.buffers() if buffer.is_floating_point()))
    average_parameters(iter(tensors), dist.group.WORLD)


def train(mode):
    net = made_net("batch_norm" if mode == "norm" else "default")
    parallel = DistributedDataParallel(net, broadcast_buffers=False, gradient_as_bucket_view=True)
    subgroup = dist.new_subgroups(pair_of(dist.get_world_size()))[0] if mode == "host" else None
    state = PostLocalSGDState(None, subgroup, WARMUP_STEPS, post_local_gradient_allreduce=mode == "host")
    parallel.register_comm_hook(state, post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(net.parameters(), foreach=False, **SGD), averager_of(mode))
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch_of(1000 * step + dist.get_rank())
        torch.nn.functional.cross_entropy(parallel(x, True), y).backward()
        optimizer.step()
    hashes = [None] * dist.get_world_size()
    dist.all_gather_object(hashes, f"{hash_of(net):016x}")
    average(net)
    return ":".join([*hashes, f"{hash_of(net):016x}"])


if __name__ == "__main__":
    print_ends(train)
