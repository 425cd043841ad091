"""ZeroRedundancyOptimizer: DDP whose optimizer state is split over the ranks."""

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import tiny


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(tiny.network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    tiny.report(tiny.train(model, optimizer, epochs=2))
    del model, optimizer  # before their group: else PyTorch 2.11 can block here
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
