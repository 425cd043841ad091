"""Trains a small convolutional net on MNIST digits with DistributedDataParallel and Gloo, on CPUs.

    torchrun --standalone --nproc-per-node=2 examples/pytorch/ddp_mnist.py

Needs PyTorch only. The same run gives the same digits: seeded, and the sums of Gloo have a fixed order.
"""
import argparse
import gzip
import os
import struct

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

IMAGES, LABELS = 0x00000803, 0x00000801  # the magic numbers of IDX files of bytes, 3 and 1 dimensions


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(9216, 128)
        self.dropout2 = nn.Dropout(0.5)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def read_idx(path, magic):
    with gzip.open(path) as file:
        content = file.read()
    dimensions = magic & 0xFF
    found, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
    if found != magic:
        raise ValueError(f"{path}: magic number {found:#010x}, expected {magic:#010x}")
    return torch.frombuffer(bytearray(content[4 + 4 * dimensions :]), dtype=torch.uint8).reshape(shape)


def load(folder, part):
    images = read_idx(os.path.join(folder, f"{part}-images-idx3-ubyte.gz"), IMAGES)
    labels = read_idx(os.path.join(folder, f"{part}-labels-idx1-ubyte.gz"), LABELS)
    return TensorDataset(images.float().div(255).sub(0.1307).div(0.3081).unsqueeze(1), labels.long())


def mean_over_ranks(total, count):
    sums = torch.tensor([total, count], dtype=torch.float64)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def train_epoch(model, loader, optimizer):
    model.train()
    total, count = 0.0, 0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
        count += len(labels)
    return mean_over_ranks(total, count)


@torch.no_grad()
def accuracy(net, data):
    net.eval()
    images, labels = data.tensors
    mine = slice(dist.get_rank(), None, dist.get_world_size())  # every held-out digit on one rank
    correct = (net(images[mine]).argmax(dim=1) == labels[mine]).sum().item()
    return mean_over_ranks(correct, len(labels[mine]))


def main():
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description="MNIST digits with DistributedDataParallel and Gloo")
    parser.add_argument("--data", default=os.path.join(here, "data", "mnist_5k"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    train, held_out = load(options.data, "train"), load(options.data, "t10k")
    sampler = DistributedSampler(train, seed=options.seed)
    # A generator of its own: the loader's draws must not move the dropout masks.
    loader = DataLoader(train, options.batch_size, sampler=sampler, generator=torch.Generator())
    torch.manual_seed(options.seed)
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    loss = float("nan")
    for epoch in range(1, options.epochs + 1):
        sampler.set_epoch(epoch)
        optimizer.param_groups[0]["lr"] = options.lr * 0.7 ** (epoch - 1)
        torch.manual_seed(options.seed + 1 + epoch * world + rank)  # the ranks drop different units
        loss = train_epoch(model, loader, optimizer)
        if rank == 0:
            print(f"epoch {epoch}/{options.epochs} loss={loss:.4f}", flush=True)
    share = accuracy(net, held_out)
    if rank == 0:
        print(f"loss={loss!r}")
        print(f"accuracy={share:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
