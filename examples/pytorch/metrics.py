"""Means over ranks with unequal numbers of samples, with torch.distributed.

    torchrun --standalone --nproc-per-node=3 examples/pytorch/metrics.py

build/bin/metrics prints the same.
"""
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    total = count = 0.0
    for batch in range(rank + 1):
        samples = 8.0 * (rank + 1) - batch
        total += (1.0 + rank + 0.5 * batch) * samples
        count += samples
    sampler = DistributedSampler(range(10), world, rank, shuffle=False)
    mine = list(sampler)
    unpadded = [sample for place, sample in enumerate(mine) if rank + place * world < 10]
    right = [sum(1.0 for sample in samples if sample % 3 == 0) for samples in (unpadded, mine)]
    sums = torch.tensor([total, count, total / count, right[0], len(unpadded), right[1], len(mine)], dtype=torch.float64)
    dist.all_reduce(sums)
    total, count, means, right, samples, right_padded, padded = sums.tolist()
    if rank == 0:
        print(f"mean over all samples={total / count:.6f}\nmean of the ranks' means={means / world:.6f}\n"
              f"accuracy={right / samples:.6f}\naccuracy with the padding={right_padded / padded:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
