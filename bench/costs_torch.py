"""PyTorch's side of bench/costs.cc: the same costs of one rank among some.

    costs_torch.py [--device=cpu|cuda]

Rank 0 prints a line `name value` for each. PyTorch's SyncBatchNorm needs GPUs and several ranks.
Else its line is missing.
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

ELEMENTS, SUMS, ROUNDS, NORM_STEPS, WARM_UPS = 1 << 18, 50, 20, 20, 3
DEVICE = "cuda" if sys.argv[1:] == ["--device=cuda"] else "cpu"


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def sum_of(numbers):
    dist.all_reduce(numbers, async_op=True).wait()


def microseconds_of_a_sum(numbers):
    times = []
    for _ in range(ROUNDS):
        synchronize()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(SUMS):
            sum_of(numbers)
        times.append(time.perf_counter() - start)
    synchronize()
    return 1e6 * min(times) / SUMS


def milliseconds_of_norm():
    norm = torch.nn.SyncBatchNorm(256).to(DEVICE)
    inputs = torch.randn(32, 256, 28, 28, device=DEVICE, requires_grad=True)
    times = []
    for _ in range(WARM_UPS + NORM_STEPS):
        start = time.perf_counter()
        inputs.grad = None
        norm(inputs).square().sum().backward()
        synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median_high(times[WARM_UPS:])


def main():
    torch.set_num_threads(1)
    start = time.perf_counter()
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    numbers = torch.zeros(ELEMENTS, device=DEVICE)
    sum_of(numbers)
    synchronize()
    costs = {"start_s": time.perf_counter() - start, "sum_us": microseconds_of_a_sum(numbers)}
    if DEVICE == "cuda" and dist.get_world_size() > 1:
        costs["norm_ms"] = milliseconds_of_norm()
    dist.barrier()
    if dist.get_rank() == 0:
        for name, value in costs.items():
            print(name, value)
    sys.stdout.flush()
    os._exit(0)  # while a process ends, PyTorch's own threads may abort it


if __name__ == "__main__":
    main()
