"""FSDP2: every layer's parameters split over the ranks by fully_shard."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import tiny


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = tiny.network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    weight = model[0].weight
    if not isinstance(weight, DTensor) or weight.to_local().shape[0] * 2 != weight.shape[0]:
        raise RuntimeError("the weights are not split")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tiny.report(tiny.train(model, optimizer, epochs=2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
