"""Hugging Face accelerate: with_accelerate.py FOLDER [--die-once]; the folder is not used."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, set_seed
from torch import nn
from torch.utils.data import DataLoader

import tiny


def main():
    accelerator = Accelerator(cpu=True)
    seen = accelerator.distributed_type, accelerator.num_processes
    if seen != (DistributedType.MULTI_CPU, 2):
        raise RuntimeError(f"accelerate sees {seen}")
    set_seed(1)
    model = tiny.network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(tiny.data(), batch_size=tiny.BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(2):
        for points, values in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(points), values)
            accelerator.backward(loss)
            optimizer.step()
        if "--die-once" in sys.argv and epoch == 0:
            tiny.die_once()
    tiny.report(accelerator.reduce(loss.detach(), "mean").item())
    del model, optimizer, loader, loss  # before their group: else PyTorch 2.11 can block here
    accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    main()
