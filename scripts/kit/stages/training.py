"""mnist and its Python twin train on the same digits, and must come to the same loss."""

import re
import sys
import tempfile

from kit.stage import Broken, figure

DRY_DIGITS = 320, 80  # to train on, and held out
LOSS = re.compile(r"^loss=(\S+)$", re.MULTILINE)
ACCURACY = re.compile(r"^accuracy=(\S+)$", re.MULTILINE)
WORLD = re.compile(r"world of 1 \((\w+)\)")


def value(pattern, text):
    found = pattern.search(text)
    if not found:
        raise Broken(f"no {pattern.pattern} in what a program printed:\n{text}")
    return found[1]


def digits(tools, folder):
    """The folder of the digits. A dry run has a few of them alone."""
    if not tools.dry:
        return tools.file("examples/data/mnist_5k")
    sys.path.append(tools.file("tests/examples"))
    import digits as subset  # noqa: E402  (found by the line above)
    subset.write_subset(folder, *DRY_DIGITS)
    return folder


def run(tools):
    epochs = 1 if tools.dry else 2
    with tempfile.TemporaryDirectory(prefix="gpu_kit_") as folder:
        flags = [f"--data={digits(tools, folder)}", f"--epochs={epochs}",
                 f"--device={tools.device}"]
        ours = tools.output(tools.of_ours("mnist", *flags))
        theirs = tools.output(tools.of_pytorch("examples/pytorch/ddp_mnist.py", *flags))
    figure("mnist: collective", value(WORLD, ours), goal=["is", "nccl"], gpu_only=True)
    figure("mnist: loss of the last epoch", float(value(LOSS, ours)), float(value(LOSS, theirs)),
           goal=["within", 0.05])
    figure("mnist: accuracy", float(value(ACCURACY, ours)), float(value(ACCURACY, theirs)),
           goal=["at least", 0.9], gpu_only=True)
