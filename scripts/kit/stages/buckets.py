"""Steps with buckets of several sizes: whether the default is a good one."""

from kit.stage import figure
from kit.stages import steps

CAPS = {"cap1": 1, "cap5": 5, "views": 25, "cap100": 100}


def run(tools):
    model, rounds = ("mlp", 1) if tools.dry else ("resnet50", 3)
    found = steps.measured(tools, steps.Series(2, (model,), tuple(CAPS), rounds, {"steps": "1,3"}))
    times = {variant: found[model, variant, steps.OURS]["median_ms"] for variant in CAPS}
    for variant, mib in CAPS.items():
        figure(f"step of {model}, buckets of {mib} MiB, N=2", times[variant],
               found[model, variant, steps.PYTORCH]["median_ms"], unit="ms")
    figure("buckets of 25 MiB over the best ones", times["views"] / min(times.values()),
           goal=["at most", 1.03], gpu_only=True)
