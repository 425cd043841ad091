"""A training step is captured as a graph and replayed, beside eager steps."""

import re

from kit.stage import figure
from kit.stages import faults

TIME = re.compile(r"^(eager|replay)_ms ([\d.]+)$", re.MULTILINE)


def run(tools):
    code, said = faults.provoke(tools, faults.CAPTURE)
    faults.tell(faults.CAPTURE, code, said)
    times = {name: float(value) for name, value in TIME.findall(said)}
    if len(times) == 2:
        figure("replay of a step", times["replay"], unit="ms")
        figure("replay over an eager step", times["replay"] / times["eager"],
               goal=["at most", 0.6], gpu_only=True)
