"""A transformer that learns the next character of a text, on a grid of workers. --mesh says what
the workers along an axis share out. It is the texts (data) or the layers (pipeline). It is the
layers' numbers, to store them (sharded) or to compute with them (tensor).

    torchrun --standalone --nproc-per-node=4 examples/pytorch/gpt.py --mesh=data=2,tensor=2

build/bin/gpt prints the same.
"""
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import twin
from gpt_mesh import mesh_of
from gpt_net import CHARACTERS, Gpt

TEXT = Path(__file__).resolve().parents[1] / "data" / "harbour" / "harbour.txt"
PLAN = {"start.words": RowwiseParallel(input_layouts=Replicate()), "end.head": ColwiseParallel(),
        **{f"blocks.*.{layer}": ColwiseParallel() for layer in ("qkv", "up")},
        **{f"blocks.*.{layer}": RowwiseParallel() for layer in ("out", "down")}}


def texts_of(text, options, step, place, places):
    """A worker's texts of a step: its share of the batch of all."""
    torch.manual_seed(1000 + step)
    starts = torch.randint(len(text) - options.length, (options.batch_size, 1)).chunk(places)[place]
    return text[starts + torch.arange(options.length + 1)]


def is_in(net, name):
    """Whether this stage has layers of the plan's name."""
    return getattr(net, name.partition(".")[0]) is not None


def parallel_of(net, mesh):
    if mesh["tensor"].size() > 1:
        parallelize_module(net, mesh["tensor"], {name: style for name, style in PLAN.items() if is_in(net, name)})
    if mesh["sharded"].size() == 1:
        return DistributedDataParallel(net, device_mesh=mesh["data"])
    for unit in net.units():
        fully_shard(unit, mesh=mesh["sharded"])
    return fully_shard(net, mesh=mesh["sharded"])


def loss_of(scores, targets, mesh):
    if mesh["tensor"].size() > 1:
        scores = DTensor.from_local(scores, mesh["tensor"], [Shard(1)], run_check=False)
    return nn.functional.cross_entropy(scores, targets.flatten())


def step_of(model, text, mesh):
    """Forward and backward. The loss; None on another stage than the last one."""
    if isinstance(model, Schedule1F1B):
        losses, last = [], mesh.get_local_rank("pipeline") == mesh["pipeline"].size() - 1
        inputs = (text[:, :-1].contiguous(),) if mesh.get_local_rank("pipeline") == 0 else ()
        model.step(*inputs, target=text[:, 1:] if last else None, losses=losses, return_outputs=False)
        return torch.stack(losses).mean().item() if losses else None
    loss = loss_of(model(text[:, :-1]), text[:, 1:], mesh)
    loss.backward()
    return loss.item()


def schedule_of(model, options, mesh):
    """The stage of a worker, and the order of its micro-batches."""
    place, stages, tensor = mesh.get_local_rank("pipeline"), mesh["pipeline"].size(), mesh["tensor"].size()
    rows = options.batch_size // (mesh["data"].size() * mesh["sharded"].size() * options.micro_batches)
    features = torch.empty(rows, options.length, options.width, device="meta")
    inputs = torch.empty(rows, options.length, dtype=torch.long, device="meta") if place == 0 else features
    outputs = torch.empty(rows * options.length, CHARACTERS // tensor, device="meta") if place == stages - 1 else features
    stage = PipelineStage(model, place, stages, torch.device("cpu"), inputs, outputs, mesh["pipeline"].get_group())
    return Schedule1F1B(stage, options.micro_batches, lambda scores, targets: loss_of(scores, targets, mesh), scale_grads=False)


def divide_gradients(optimizer, number):
    """Divides all gradients, as scale_grads should. It would miss split layers below
    DistributedDataParallel (PyTorch 2.11). After a forward these are no parameters of their module.
    """
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad.div_(number)


def local(parameter):
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def main():
    options = twin.options_of(__doc__, data=False, mesh="", text=str(TEXT), steps=60, batch_size=16, length=64, width=64,
                              heads=4, layers=4, micro_batches=4, lr=0.003)
    mesh = mesh_of(options.mesh or f"data={dist.get_world_size()}")
    places = mesh["sharded" if mesh["sharded"].size() > 1 else "data"]  # of the texts
    text = torch.tensor(list(Path(options.text).read_bytes()))
    net = Gpt(options, mesh.get_local_rank("pipeline"), mesh["pipeline"].size())
    model = parallel_of(net, mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=options.lr)
    way = schedule_of(model, options, mesh) if mesh["pipeline"].size() > 1 else model
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        with loss_parallel():
            loss = step_of(way, texts_of(text, options, step, places.get_local_rank(), places.size()), mesh)
        if way is not model:
            divide_gradients(optimizer, options.micro_batches)
        optimizer.step()
        if step % 10 == 0:
            mean = twin.mean_over_ranks(loss or 0, 0 if loss is None else 1)
            twin.say(f"step {step} loss={mean}")
    twin.say(f"numbers of a worker: {sum(local(parameter).numel() for parameter in optimizer.param_groups[0]['params'])}")
    del model, way  # before its group: PyTorch 2.11 can block otherwise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
