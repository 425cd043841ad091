"""A table with numbers, categories and missing values, with DistributedDataParallel and Gloo.

    torchrun --standalone --nproc-per-node=2 examples/pytorch/adults.py --data /tmp/adults

build/bin/adults ends with the same bits.
"""
import csv
import math
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import twin

CATEGORIES = {1, 3, 5, 6, 7, 8, 9, 13}  # columns; the last one is the label, all others are numbers


def read(path):
    rows = csv.reader(line for line in Path(path).read_text().splitlines() if line and not line.startswith("|"))
    return [[cell.strip() for cell in row] for row in rows]


class Scale:
    """The scale that is learnt from the training table."""

    def __init__(self, rows):
        self.numbers, self.names = {}, {}
        for column in range(14):
            values = [row[column] for row in rows if row[column] != "?"]
            if column in CATEGORIES:
                self.names[column] = {name: code for code, name in enumerate(sorted(set(values)), 1)}
                continue
            total = squares = 0.0  # in this order: sum() of newer Pythons rounds in another way
            for value in values:
                total += float(value)
            mean = total / len(values)
            for value in values:
                squares += (float(value) - mean) * (float(value) - mean)
            self.numbers[column] = mean, math.sqrt(squares / len(values)) or 1.0

    def tensors(self, rows):
        numbers = [[0.0 if row[c] == "?" else (float(row[c]) - mean) / deviation
                    for c, (mean, deviation) in self.numbers.items()] for row in rows]
        codes = [[names.get(row[c], 0) for c, names in self.names.items()] for row in rows]
        labels = [int(row[14].startswith(">50K")) for row in rows]
        return TensorDataset(torch.tensor(numbers), torch.tensor(codes), torch.tensor(labels))


class Net(nn.Module):
    def __init__(self, numbers, categories):
        super().__init__()
        self.vectors = nn.ModuleList(nn.Embedding(len(names) + 1, 8) for names in categories)
        self.hidden = nn.Linear(numbers + 8 * len(self.vectors), 64)
        self.output = nn.Linear(64, 2)

    def forward(self, numbers, codes):
        vectors = [layer(codes[:, i]) for i, layer in enumerate(self.vectors)]
        return self.output(torch.relu(self.hidden(torch.cat([numbers, *vectors], 1))))


def main():
    options = twin.options_of(__doc__, epochs=3, batch_size=64, lr=0.05)
    rows = read(f"{options.data}/adult.data")
    scale = Scale(rows)
    train, held_out = scale.tensors(rows), scale.tensors(read(f"{options.data}/adult.test"))
    torch.manual_seed(1)
    net = Net(len(scale.numbers), scale.names.values())
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, options.batch_size, sampler=sampler)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        twin.say_epoch(epoch, options.epochs, twin.train_epoch(loader, model, optimizer))
    twin.say_result(net, held_out, 1024)
    del model  # before its group: PyTorch 2.11 can block otherwise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
