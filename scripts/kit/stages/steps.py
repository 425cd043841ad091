"""Training steps of some models, ours and PyTorch's in turn (bench/step)."""

import json
import os
import sys
import tempfile
import typing

from kit.stage import figure

OURS, PYTORCH = "ours", "PyTorch"


class Series(typing.NamedTuple):
    """Calls of bench/step that start both jobs once. `more` has other options of it."""

    ranks: int
    models: tuple
    variants: tuple
    rounds: int
    more: dict = {}


DRY = (Series(1, ("mlp",), ("free", "views", "bf16"), 1), Series(2, ("mlp",), ("views",), 1))
# The figures of a series are told at its end, so those of a stage that is cut are kept. The ranks
# of one card talk over sockets, and their kernels take turns.
ALL = (Series(1, ("mlp", "resnet18", "transformer"), ("free", "views", "bf16"), 5),
       Series(1, ("resnet50",), ("free", "views", "bf16"), 5),
       Series(2, ("resnet18", "resnet50"), ("views",), 3, {"steps": "1,4"}),
       Series(1, ("transformer350m",), ("views", "bf16"), 3))


def measured(tools, series):
    """{(model, variant, side): row of bench/step}: medians over the rounds."""
    with tempfile.TemporaryDirectory(prefix="gpu_kit_") as folder:
        path = os.path.join(folder, "steps.json")
        options = {"ranks": series.ranks, "turns": 1, "tries": 1, "rounds": series.rounds,
                   "models": ",".join(series.models), "variants": ",".join(series.variants),
                   "device": tools.device, "build": os.path.dirname(tools.programs),
                   "python": tools.python, "json": path, **series.more}
        print(tools.output([sys.executable, "-B", tools.file("bench/step"),
                            *(f"--{name}={value}" for name, value in options.items())]))
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)["rows"]
    return {(row["model"], row["variant"], row["side"]): row for row in rows}


def tell(found, series):
    """Tells ours beside PyTorch's for each model and variant that sums."""
    for model in series.models:
        for variant in series.variants:
            ours, theirs = (found[model, variant, side] for side in (OURS, PYTORCH))
            what = f"{model}, {variant}, N={series.ranks}"
            figure(f"loss of {what}", ours["loss"], theirs["loss"], goal=["within", 0.01])
            if variant != "free":
                figure(f"step of {what}", ours["median_ms"], theirs["median_ms"], unit="ms",
                       goal=["ratio at most", 1.0], gpu_only=True)
        if "free" in series.variants:
            over = (found[model, "views", OURS]["median_ms"] /
                    found[model, "free", OURS]["median_ms"])
            figure(f"step of {model}: DataParallel over none, N={series.ranks}", over,
                   goal=["at most", 1.02], gpu_only=True)


def run(tools):
    for series in DRY if tools.dry else ALL:
        tell(measured(tools, series), series)
