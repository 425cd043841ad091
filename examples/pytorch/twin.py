"""What the Python twins of the C++ examples have in common. They run under torchrun or ddprun."""
import argparse

import torch
import torch.distributed as dist


def options_of(about, **defaults):
    """--data, and a flag for each default: `batch_size=64` is --batch-size."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data", required=True)
    for name, default in defaults.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return options


def mean_over_ranks(total, count):
    sums = torch.tensor([total, count], dtype=torch.float64)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def mine_of(count):
    """Each held-out sample on one rank."""
    return range(dist.get_rank(), count, dist.get_world_size())


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def checksum(net):
    """FNV-1a over parameters and buffers: worker::checksum() of the engine."""
    value = 0xCBF29CE484222325
    for tensor in (*net.parameters(), *net.buffers()):
        for byte in tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist():
            value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value
