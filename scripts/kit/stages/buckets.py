"""Steps with buckets of several sizes: whether the default is a good one."""

from kit.stage import figure
from kit.stages import steps

CAPS = {"cap1": 1, "cap5": 5, "views": 25, "cap100": 100}


def run(tools):
    model, rounds = ("mlp", 1) if tools.dry else ("resnet50", 3)
    found = steps.measured(tools, 2, [model], list(CAPS), rounds)
    for variant, mib in CAPS.items():
        figure(f"step of {model}, buckets of {mib} MiB, N=2", found[model, variant, steps.OURS],
               found[model, variant, steps.PYTORCH], unit="ms")
    best = min(found[model, variant, steps.OURS] for variant in CAPS)
    figure("buckets of 25 MiB over the best ones", found[model, "views", steps.OURS] / best,
           goal=["at most", 1.03], gpu_only=True)
