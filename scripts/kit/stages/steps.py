"""Training steps of some models, ours and PyTorch's in turn (bench/step)."""

import json
import os
import sys
import tempfile

from kit.stage import figure

OURS, PYTORCH = "ours", "PyTorch"


def measured(tools, ranks, models, variants, rounds):
    """{(model, variant, side): milliseconds of a step}: medians over the rounds."""
    with tempfile.TemporaryDirectory(prefix="gpu_kit_") as folder:
        path = os.path.join(folder, "steps.json")
        options = {"ranks": ranks, "turns": 1, "tries": 1, "rounds": rounds, "json": path,
                   "models": ",".join(models), "variants": ",".join(variants),
                   "device": tools.device, "build": os.path.dirname(tools.programs),
                   "python": tools.python}
        print(tools.output([sys.executable, "-B", tools.file("bench/step"),
                            *(f"--{name}={value}" for name, value in options.items())]))
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)["rows"]
    return {(row["model"], row["variant"], row["side"]): row["median_ms"] for row in rows}


def tell_pairs(found, ranks, most):
    """Tells ours beside PyTorch's for each model and variant that sums."""
    for model, variant, side in found:
        if side == OURS and variant != "free":
            figure(f"step of {model}, {variant}, N={ranks}", found[model, variant, OURS],
                   found[model, variant, PYTORCH], unit="ms", goal=["ratio at most", most],
                   gpu_only=True)


def run(tools):
    models = ["mlp"] if tools.dry else ["mlp", "resnet18", "resnet50", "transformer",
                                        "transformer350m"]
    rounds = 1 if tools.dry else 5
    alone = measured(tools, 1, models, ["free", "views", "bf16"], rounds)
    tell_pairs(alone, 1, 1.0)
    for model in models:
        over = alone[model, "views", OURS] / alone[model, "free", OURS]
        figure(f"step of {model}: DataParallel over none, N=1", over, goal=["at most", 1.02],
               gpu_only=True)
    # The ranks of one card talk over sockets, and their kernels take turns.
    two = measured(tools, 2, models[:1] if tools.dry else ["resnet18", "resnet50"], ["views"],
                   1 if tools.dry else 3)
    tell_pairs(two, 2, 1.0)
