"""Trains a deep model of the next word, of which each worker has some of the layers. A batch goes
through the workers in micro-batches, so that they work at the same time.

    torchrun --standalone --nproc-per-node=4 examples/pytorch/pipeline.py --schedule 1f1b

With --halves each worker has all layers, in two halves, as for two devices; here both are one.
Workers share the batch, and DistributedDataParallel averages the gradients of both halves.

build/bin/pipeline prints the same.
"""
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

import twin
from pipeline_net import Halves, loss_of, stage_of, text_of

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


def train_halves(options):
    # A model on several devices has no device_ids.
    model = DistributedDataParallel(Halves(options, ("cpu", "cpu")))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, foreach=False)
    for step in range(options.steps):
        text = text_of(options, step).chunk(dist.get_world_size())[dist.get_rank()]
        optimizer.zero_grad()
        loss = loss_of(model(text[:, :-1]), text[:, 1:])
        loss.backward()
        optimizer.step()
        if (step + 1) % 10 == 0:
            mean = twin.mean_over_ranks(loss.item(), 1)
            twin.say(f"step {step + 1} loss={mean}")


def most_alive(options):
    left = dist.get_world_size() - dist.get_rank()
    return options.micro_batches if options.schedule == "gpipe" else min(options.micro_batches, left)


def from_last(losses):
    mean = torch.stack(losses).mean().detach().double() if losses else torch.zeros((), dtype=torch.double)
    dist.broadcast(mean, dist.get_world_size() - 1)
    return mean.item()


def train_stages(options):
    net = stage_of(options, dist.get_rank(), dist.get_world_size())
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


def main():
    options = twin.options_of(__doc__, data=False, halves=False, schedule="1f1b", micro_batches=8, layers=8, steps=60, batch_size=16, length=16, words=64, width=32, lr=0.5)
    if options.halves:
        train_halves(options)
    else:
        train_stages(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
