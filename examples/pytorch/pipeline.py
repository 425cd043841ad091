"""Trains a deep model of the next word, of which each worker has some of the layers. A batch goes
through the workers in micro-batches, so that they work at the same time.

    torchrun --standalone --nproc-per-node=4 examples/pytorch/pipeline.py --schedule 1f1b

build/bin/pipeline prints the same.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import twin

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


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


def stage_of(options):
    """The layers of a worker. Each layer has a seed of its own, so it is the same on any number of
    workers."""
    each = options.layers // dist.get_world_size()
    first = dist.get_rank() * each
    layers = [made(1, nn.Embedding, options.words, options.width)] if first == 0 else []
    layers += [made(10 + i, Block, options.width) for i in range(first, first + each)]
    if dist.get_rank() == dist.get_world_size() - 1:
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


def most_alive(options):
    left = dist.get_world_size() - dist.get_rank()
    return options.micro_batches if options.schedule == "gpipe" else min(options.micro_batches, left)


def from_last(losses):
    mean = torch.stack(losses).mean().detach().double() if losses else torch.zeros((), dtype=torch.double)
    dist.broadcast(mean, dist.get_world_size() - 1)
    return mean.item()


def main():
    options = twin.options_of(__doc__, data=False, schedule="1f1b", micro_batches=8, layers=8, steps=60, batch_size=16, length=16, words=64, width=32, lr=0.5)
    net = stage_of(options)
    stage = PipelineStage(net, dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    schedule = SCHEDULES[options.schedule](stage, options.micro_batches, loss_of)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, foreach=False)
    for step in range(options.steps):
        text, losses = text_of(options, step), []
        optimizer.zero_grad()
        inputs = (text[:, :-1].contiguous(),) if stage.is_first else ()
        schedule.step(*inputs, target=text[:, 1:] if stage.is_last else None, losses=losses, return_outputs=False)
        optimizer.step()
        if (step + 1) % 10 == 0:
            loss = from_last(losses)
            twin.say(f"step {step + 1} loss={loss}")
    twin.say(f"most micro-batches alive: {most_alive(options)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
