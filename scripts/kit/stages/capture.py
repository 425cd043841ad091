"""A training step is captured as a graph and replayed, beside eager steps. One rank does so, and
then two."""

import re

from kit.stage import figure
from kit.stages import faults

TIME = re.compile(r"^(eager|replay)_ms ([\d.]+)$", re.MULTILINE)


def run(tools):
    for ranks, name in enumerate(faults.CAPTURES, start=1):
        code, said = faults.provoke(tools, name)
        faults.tell(name, code, said)
        times = {name: float(value) for name, value in TIME.findall(said)}
        if len(times) == 2:
            figure(f"replay of a step, N={ranks}", times["replay"], unit="ms")
            # The kernels of two ranks take turns, which no graph makes shorter.
            goal = {"goal": ["at most", 0.6], "gpu_only": True} if ranks == 1 else {}
            figure(f"replay over an eager step, N={ranks}", times["replay"] / times["eager"],
                   **goal)
