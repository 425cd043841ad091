"""A step of optimizers: ours beside torch.optim with `fused=True` and with its defaults."""

import statistics

from kit.stage import figure

KINDS = ("sgd", "adam", "adamw", "adam@resnet50")


def seconds(text):
    """{kind: seconds of a step} of what a program printed."""
    return {kind: float(found) for kind, found in map(str.split, text.splitlines())}


def median(rounds, kind):
    return 1000 * statistics.median(one[kind] for one in rounds)


def run(tools):
    mib, steps, rounds = (4, 2, 1) if tools.dry else (100, 30, 3)
    more = [",".join(KINDS), mib, steps, f"--device={tools.device}"]
    sides = {"ours": [tools.program("bench-optimizers"), *more[:1], "ours", *more[1:]],
             "fused": [tools.python, tools.file("bench/optimizers_torch.py"), "fused", *more],
             "plain": [tools.python, tools.file("bench/optimizers_torch.py"), "plain", *more]}
    found = {side: [] for side in sides}
    for number in range(rounds):
        for side in list(sides) if number % 2 == 0 else reversed(sides):
            found[side].append(seconds(tools.output(sides[side])))
    for kind in KINDS:
        ours = median(found["ours"], kind)
        name = kind if "@" in kind else f"{kind}, {mib} MiB"
        figure(f"{name}: against fused", ours, median(found["fused"], kind), unit="ms",
               goal=["ratio at most", 1.05], gpu_only=True)
        figure(f"{name}: against the default", ours, median(found["plain"], kind),
               unit="ms")
