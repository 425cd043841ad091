"""Trains a small convolutional net on MNIST digits with DistributedDataParallel and Gloo, on CPUs;
with --device=cuda and NCCL on GPUs.

    torchrun --standalone --nproc-per-node=2 examples/pytorch/ddp_mnist.py

Needs PyTorch only. The same run gives the same digits on CPUs: it is seeded, and Gloo's sums have
an order.
"""
import argparse
import gzip
import os
import struct
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def meet(device):
    """Gloo for what lies on the CPU. With `cuda` a rank has the GPU of its local rank, and NCCL for
    what lies there."""
    gpu, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count() if device == "cuda" else 0
    if device not in ("cpu", "cuda") or (device == "cuda" and gpu >= gpus):
        print(f"--device: '{device}' given, expected cpu, or cuda where each rank has a GPU (local rank {gpu}, {gpus} GPUs)", file=sys.stderr)
        sys.exit(2)
    if device == "cuda":
        torch.cuda.set_device(gpu)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")


def device_of(net):
    return next(net.parameters()).device


def make_net():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10), nn.LogSoftmax(dim=1))


def read_idx(path, dimensions):
    content = gzip.decompress(Path(path).read_bytes())
    magic, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
    if magic != 0x800 + dimensions:  # an IDX file of bytes
        raise ValueError(f"{path}: magic number {magic:#010x}, expected {0x800 + dimensions:#010x}")
    content = bytearray(content[4 + 4 * dimensions :])
    return torch.frombuffer(content, dtype=torch.uint8).reshape(shape)


def load(folder, part):
    images = read_idx(f"{folder}/{part}-images-idx3-ubyte.gz", 3).unsqueeze(1).float()
    labels = read_idx(f"{folder}/{part}-labels-idx1-ubyte.gz", 1)
    return TensorDataset(images.div(255).sub(0.1307).div(0.3081), labels.long())


def mean_over_ranks(total, count):
    sums = torch.tensor([total, count], dtype=torch.float64)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def train_epoch(model, loader, optimizer):
    model.train()
    total = 0.0
    for batch in loader:
        images, labels = (part.to(device_of(model)) for part in batch)
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    return mean_over_ranks(total, len(loader.sampler))


@torch.no_grad()
def accuracy(net, data):
    net.eval()
    mine = slice(dist.get_rank(), None, dist.get_world_size())  # every held-out digit on one rank
    images, labels = (part.to(device_of(net)) for part in data[mine])
    return mean_over_ranks(net(images).argmax(dim=1).eq(labels).sum().item(), len(labels))


def save(path, epoch, net, optimizer):
    """Whole or not at all: a worker may be killed at any moment."""
    torch.save({"epoch": epoch, "net": net.state_dict(), "optimizer": optimizer.state_dict()}, f"{path}.new")
    os.replace(f"{path}.new", path)


def resume(path, net, optimizer):
    """The epoch to go on with. Every rank reads the file, whatever the number of workers that wrote
    it."""
    if not path or not Path(path).exists():
        return 1
    state = torch.load(path, map_location="cpu", weights_only=True)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


def require_same(value, what):
    bounds = torch.tensor([value, -value])
    dist.all_reduce(bounds, dist.ReduceOp.MAX)
    if bounds[0] != -bounds[1]:
        raise SystemExit(f"{what}: not the same on all ranks; the file must be on a disk that all hosts share")


def main():
    parser = argparse.ArgumentParser(description="MNIST with DistributedDataParallel, over Gloo or NCCL")
    parser.add_argument("--data", default=Path(__file__).resolve().parents[1] / "data/mnist_5k")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", help="file to save after each epoch and to go on from, on a disk that all hosts share")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: the GPU whose number is the local rank")
    options = parser.parse_args()
    meet(options.device)
    rank, world = dist.get_rank(), dist.get_world_size()
    train, held_out = load(options.data, "train"), load(options.data, "t10k")
    sampler = DistributedSampler(train, seed=options.seed)
    # A generator of its own: the loader's draws must not move the dropout masks.
    loader = DataLoader(train, options.batch_size, sampler=sampler, generator=torch.Generator())
    torch.manual_seed(options.seed)
    net = make_net().to(options.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9)
    first = resume(options.checkpoint, net, optimizer)
    require_same(first, f"epochs in --checkpoint={options.checkpoint}")
    model = DistributedDataParallel(net)
    if options.checkpoint and rank == 0:
        print(f"world={world}, {first - 1} epochs done", flush=True)
    loss = float("nan")
    for epoch in range(first, options.epochs + 1):
        sampler.set_epoch(epoch)
        optimizer.param_groups[0]["lr"] = options.lr * 0.7 ** (epoch - 1)
        torch.manual_seed(options.seed + 1 + epoch * world + rank)  # the ranks drop different units
        loss = train_epoch(model, loader, optimizer)
        if rank == 0:
            if options.checkpoint:
                save(options.checkpoint, epoch, net, optimizer)
            print(f"epoch {epoch}/{options.epochs} loss={loss:.4f}", flush=True)
    share = accuracy(net, held_out)
    if rank == 0:
        print(f"loss={loss!r}\naccuracy={share:.4f}")
    # The model goes before its group. PyTorch 2.11 can block for good if a DistributedDataParallel
    # is destroyed after its group. It holds the interpreter's lock while it waits for a thread of
    # Gloo. That thread may need the lock to free its last tensor.
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
