"""The samples, of 24, that each worker sees in two epochs, with PyTorch's DataLoader and
DistributedSampler.

    torchrun --standalone --nproc-per-node=4 examples/pytorch/minimal_sampler.py

build/bin/minimal_sampler prints the same.
"""
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    numbers = list(range(24))
    sampler = DistributedSampler(numbers, world, rank)
    loader = DataLoader(numbers, batch_size=4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        lines = [None] * world
        dist.all_gather_object(lines, f"epoch {epoch} rank {rank}: {[batch.tolist() for batch in loader]}")
        if rank == 0:
            print(*lines, sep="\n", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
