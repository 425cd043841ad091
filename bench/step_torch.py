"""PyTorch's side of bench/step: one rank, as bench/step.cc is one of ours.

    step_torch.py FOLDER [--device=cpu|cuda]

It takes orders `MODEL VARIANT WARM_UPS STEPS` from the named pipe FOLDER/orders.RANK. It writes a
line of JSON for each to FOLDER/answers.RANK. It ends when nobody has the other end of the orders
open any more.
"""
import gc
import json
import os
import resource
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.dont_write_bytecode = True

from step_models import make_batch, make_model  # noqa: E402

STEP_OF_LOSS = 3  # whose loss is told, as in step.cc


def usage():
    return {"wall_s": time.perf_counter(), "cpu_s": time.process_time(), "training_cpu_s": time.thread_time(),
            "page_faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt}


class Trainer:
    """A model that is trained on one batch again and again."""

    def __init__(self, name, variant, device):
        self.device, self.in_bf16 = device, variant == "bf16"
        self.model = make_model(name, device)
        self.inputs, self.labels = (part.to(device) for part in make_batch(name, dist.get_rank(), wide=device == "cuda"))
        cap = {"bucket_cap_mb": int(variant.removeprefix("cap"))} if variant.startswith("cap") else {}
        if cap or variant in ("ddp", "views", "bf16"):
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=variant != "ddp", **cap)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.with_barrier = variant == "barrier"
        self.steps, self.loss = 0, None

    def step(self):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.in_bf16):
            scores = self.model(self.inputs).float()
        loss = torch.nn.functional.cross_entropy(scores, self.labels)
        loss.backward()
        if self.with_barrier:
            dist.barrier()
        self.optimizer.step()
        self.steps += 1
        if self.steps == STEP_OF_LOSS:
            self.loss = loss.item()


class Trainers:
    """The trainers of one model: a variant goes on at the point at which its last order ended. An
    order for another model ends them all."""

    def __init__(self, device):
        self.device, self.model, self.trainers = device, None, {}

    def of(self, model, variant):
        if model != self.model:
            self.model, self.trainers = model, {}
            gc.collect()  # DistributedDataParallel is part of a cycle
        if variant not in self.trainers:
            self.trainers[variant] = Trainer(model, variant, self.device)
        return self.trainers[variant]


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def timed_steps(trainer, steps):
    """The time of each step; on a GPU the mean of all, once, as in step.cc."""
    times_ms, begin = [], time.perf_counter()
    for _ in range(steps):
        start = time.perf_counter()
        trainer.step()
        times_ms.append(1e3 * (time.perf_counter() - start))
    synchronize(trainer.device)
    return [1e3 * (time.perf_counter() - begin) / steps] if trainer.device == "cuda" else times_ms


def measure(trainer, warm_ups, steps):
    for _ in range(warm_ups):
        trainer.step()
    synchronize(trainer.device)
    dist.barrier()
    before = usage()
    times_ms = timed_steps(trainer, steps)
    used = {key: after - before[key] for key, after in usage().items()}
    return {"times_ms": [round(one, 4) for one in times_ms], "loss": trainer.loss, "pid": os.getpid(), **used}


def main():
    torch.set_num_threads(1)
    folder, device = sys.argv[1], "cuda" if sys.argv[2:] == ["--device=cuda"] else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, trainers = dist.get_rank(), Trainers(device)
    with open(f"{folder}/orders.{rank}") as orders, open(f"{folder}/answers.{rank}", "w") as answers:
        for order in iter(orders.readline, ""):
            name, variant, warm_ups, steps = order.split()
            print(json.dumps(measure(trainers.of(name, variant), int(warm_ups), int(steps))), file=answers, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
