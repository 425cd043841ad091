"""Does as tensor_parallel_trainer.cc, with PyTorch's parallelize_module(), loss_parallel() and
DeviceMesh over Gloo."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from parity_trainer import Hash, print_ends

WORDS, FEATURES, HEADS, BATCH, SEQUENCE = 64, 32, 4, 3, 12
BLOCKS, STEPS = 2, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(FEATURES)
        self.qkv = nn.Linear(FEATURES, 3 * FEATURES)
        self.out = nn.Linear(FEATURES, FEATURES)
        self.norm2 = nn.LayerNorm(FEATURES)
        self.up = nn.Linear(FEATURES, 4 * FEATURES)
        self.down = nn.Linear(4 * FEATURES, FEATURES)

    def forward(self, x):
        heads = self.qkv(self.norm1(x)).unflatten(-1, (-1, 3, FEATURES // HEADS)).permute(3, 0, 2, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, FEATURES)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(FEATURES)
        self.head = nn.Linear(FEATURES, WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


def plan_of(mode):
    """Each layer's style. Between them a tensor is whole, or split over its sequence."""
    between = Shard(1) if mode == "sequence" else Replicate()
    into, out = {"input_layouts": between}, {"output_layouts": between}
    plan = {"words": RowwiseParallel(input_layouts=Replicate(), **out), "head": ColwiseParallel(**into, use_local_output=False)}
    for layer in ("qkv", "up"):
        plan[f"blocks.*.{layer}"] = ColwiseParallel(**into)
    for layer in ("out", "down"):
        plan[f"blocks.*.{layer}"] = RowwiseParallel(**out)
    if mode == "sequence":
        plan.update({name: SequenceParallel() for name in ("norm", "blocks.*.norm1", "blocks.*.norm2")})
    return plan


def add_all(found, tensors):
    for tensor in tensors:
        found.add(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)


def joined(parameters, placements, mesh, part=lambda parameter: parameter):
    """DTensors again of what DistributedDataParallel has made local, in the order of
    `placements`."""
    parts = ((part(parameters[name]), placement) for name, placement in placements.items())
    return [DTensor.from_local(tensor, mesh, placement) if placement else tensor for tensor, placement in parts]


def train(mode):
    net = Transformer()
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.2)
    copies = 2 if mode == "mesh" else 1
    mesh = init_device_mesh("cpu", (copies, dist.get_world_size() // copies), mesh_dim_names=("data", "tensor"))
    parallelize_module(net, mesh["tensor"], plan_of(mode))
    # DistributedDataParallel makes local tensors of them, in another order. A forward() takes those
    # out of the module.
    placements = {name: parameter.placements if mode == "mesh" and isinstance(parameter, DTensor) else None for name, parameter in net.named_parameters()}
    model = DistributedDataParallel(net, device_mesh=mesh["data"]) if mode == "mesh" else net
    parameters = dict(net.named_parameters())
    # With sequence parallel the norms' momenta would be terms, which have other last bits.
    momentum = 0 if mode == "sequence" else 0.9
    optimizer = torch.optim.SGD(parameters.values(), lr=0.05, momentum=momentum, foreach=False)
    first, gradients, end = Hash(), Hash(), Hash()
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.manual_seed(1000 + 10 * step + mesh.get_local_rank("data"))
        text = torch.randint(WORDS, (BATCH, SEQUENCE + 1))
        with loss_parallel():
            loss = nn.functional.cross_entropy(model(text[:, :-1]), text[:, 1:].flatten())
            loss.backward()
        if step == 0:
            add_all(first, [loss])
            add_all(gradients, joined(parameters, placements, mesh["tensor"], lambda parameter: parameter.grad))
        add_all(end, [loss])
        optimizer.step()
    add_all(end, joined(parameters, placements, mesh["tensor"]))
    return f"{first.value:016x}:{gradients.value:016x}:{end.value:016x}"


if __name__ == "__main__":
    print_ends(train)
