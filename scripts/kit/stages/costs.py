"""Single costs of ours and of PyTorch's, with one and two ranks (bench/costs.cc). A step of ZeRO
beside one of Adam. The GPU's memory in training."""

import importlib.machinery
import importlib.util
import math
import statistics
import subprocess
import sys
import tempfile

from kit.stage import GPU_TWICE, absent, figure

COSTS = {"start_s": ("start, and the first sum", "s", 1.1),
         "sum_us": ("host time of a sum of 1 MiB", "us", 1.0),
         "norm_ms": ("SyncBatchNorm, forward and backward", "ms", 1.1)}


def costs(text):
    return {name: float(value) for name, value in map(str.split, text.splitlines())}


def medians(tools, ranks, rounds):
    """The costs of both sides, measured in turn: {name: median} of ours and of PyTorch's."""
    device, more = f"--device={tools.device}", {} if tools.dry else GPU_TWICE
    sides = ([tools.program("bench-costs"), device],
             [tools.python, tools.file("bench/costs_torch.py"), device])
    found = [], []
    for _ in range(rounds):
        for side, command in zip(found, sides):
            if ranks == 1:
                side.append(costs(tools.output(tools.launch("--no-python", *command))))
            else:
                side.append(costs(tools.output(tools.ranks_on_one_gpu(*command), **more)))
    return [{name: statistics.median(one[name] for one in side) for name in side[0]}
            for side in found]


def tell_costs(tools, ranks, rounds):
    ours, theirs = medians(tools, ranks, rounds)
    for name, (what, unit, most) in COSTS.items():
        if name in theirs:
            figure(f"{what}, N={ranks}", ours[name], theirs[name], unit=unit,
                   goal=["ratio at most", most], gpu_only=True)
        else:
            figure(f"{what}, N={ranks}", ours[name], unit=unit)
    figure(f"step with Adam of 100 MB, N={ranks}", ours["adam_ms"], unit="ms")
    figure(f"step with ZeRO over one with Adam, N={ranks}", ours["zero_ms"] / ours["adam_ms"],
           **({"goal": ["at most", 1.05], "gpu_only": True} if ranks == 2 else {}))


def bench_step(tools):
    """The script bench/step as a module, for the jobs that it knows."""
    sys.path.append(tools.file("bench"))
    loader = importlib.machinery.SourceFileLoader("bench_step", tools.file("bench/step"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_step", loader))
    loader.exec_module(module)
    return module


def used_mib():
    """The memory of the GPU that all processes use; NaN if nvidia-smi gives no answer."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return int(done.stdout.split()[0])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return math.nan


def memory(tools, model):
    """The GPU's memory that a job takes, its context included: MiB of ours and of PyTorch's."""
    step, found = bench_step(tools), {}
    commands = step.commands(tools.programs, tools.python, 1, tools.device)
    for side, command in commands.items():
        before = used_mib()
        with tempfile.TemporaryDirectory(prefix="gpu_kit_") as folder, step.Job(
                side, command, f"{folder}/job", 1, tools.device) as job:
            job.obey(f"{model} views 1 3")
            found[side] = used_mib() - before
            job.close()
    return found["ours"], found["PyTorch"]


def run(tools):
    for ranks in (2,) if tools.dry else (1, 2):
        tell_costs(tools, ranks, 1 if tools.dry else 3)
    model = "mlp" if tools.dry else "resnet50"
    ours, theirs = memory(tools, model)
    if math.isnan(ours):
        absent(f"memory of {model} in training", "nvidia-smi does not answer")
    else:
        figure(f"memory of {model} in training", ours, theirs, unit="MiB",
               goal=["ratio at most", 1.0])
