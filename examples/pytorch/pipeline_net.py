"""The layers and texts of examples/pipeline: the same ones, with the same initial weights."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def made(seed, layer, *sizes):
    torch.manual_seed(seed)
    return layer(*sizes)


def stage_of(options, stage, stages):
    """The layers of a stage. Each layer has a seed of its own, so it is the same on any number of
    workers."""
    each = options.layers // stages
    first = stage * each
    layers = [made(1, nn.Embedding, options.words, options.width)] if first == 0 else []
    layers += [made(10 + i, Block, options.width) for i in range(first, first + each)]
    if stage == stages - 1:
        layers.append(made(2, nn.Linear, options.width, options.words))
    return nn.Sequential(*layers)


def text_of(options, step):
    """A text in which a word says which one comes next."""
    torch.manual_seed(100 + step)
    text = [torch.randint(options.words, (options.batch_size, 1))]
    for _ in range(options.length):
        text.append((text[-1] * 5 + 3).remainder(options.words))
    return torch.cat(text, 1)


def loss_of(scores, following):
    return nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())


class Halves(nn.Module):
    """The model in two stages of one process. Activations go from device to device in forward()."""

    def __init__(self, options, devices):
        super().__init__()
        self.devices = devices
        self.first, self.second = (stage_of(options, half, 2).to(device) for half, device in enumerate(devices))

    def forward(self, x):
        return self.second(self.first(x.to(self.devices[0])).to(self.devices[1]))
