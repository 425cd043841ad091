"""Does as sharded_trainer.cc, with PyTorch's fully_shard over Gloo."""

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from parity_trainer import made_net, print_ends

STEPS = 20


def train(mode):
    double = mode == "adam"
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = made_net("default")
    if double:
        net = net.double()
    for unit in (net.first, net.aside, net.last):
        fully_shard(unit, mesh=mesh)
    fully_shard(net, mesh=mesh)
    if mode == "adam":
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.manual_seed(1000 * step + dist.get_rank())
        x = torch.randn(8, 20)
        y = torch.randint(10, (8,))
        torch.nn.functional.cross_entropy(net(x.double() if double else x, True), y).backward()
        optimizer.step()
    state = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))
    numbers = [number for tensor in state.values() for number in tensor.double().flatten().tolist()]
    return ",".join(f"{number:.10g}" for number in numbers)


if __name__ == "__main__":
    print_ends(train)
