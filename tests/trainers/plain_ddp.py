"""DistributedDataParallel as its manual has it, on Gloo."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tiny


def main():
    if not dist.is_torchelastic_launched():
        raise RuntimeError("PyTorch does not see that it was launched by torchrun or the like")
    dist.init_process_group("gloo")
    model = DistributedDataParallel(tiny.network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tiny.report(tiny.train(model, optimizer, epochs=2))
    del model, optimizer  # before their group: else PyTorch 2.11 can block here
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
