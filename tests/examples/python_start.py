"""A checkpoint that Python has written, for tests that go on from it. It has the net of an example,
and the momenta of its optimizer."""

import os
import pathlib
import subprocess

TWINS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "pytorch"
DEADLINE_S = 120
# Saves what a training of one step leaves, as after an epoch. Its keys begin with module., as those
# of a DistributedDataParallel.
SCRIPT = """
import sys, torch
from torch import nn
sys.path.insert(0, sys.argv[2])
torch.manual_seed(5)
NET
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=DECAY)
net(INPUTS).pow(2).mean().backward()
optimizer.step()
torch.save({"epoch": 1, "arch": "python", "state_dict": {f"module.{name}": value for name, value in net.state_dict().items()},
            "best_acc1": torch.tensor(0.1),
            "optimizer": optimizer.state_dict()}, sys.argv[1])
"""
MNIST_NET = """net = nn.Sequential()
for name, layer in (("conv1", nn.Conv2d(1, 32, 3)), ("relu1", nn.ReLU()), ("conv2", nn.Conv2d(32, 64, 3)), ("pool", nn.MaxPool2d(2)),
                    ("flat", nn.Flatten()), ("fc1", nn.Linear(9216, 128)), ("relu2", nn.ReLU()), ("fc2", nn.Linear(128, 10))):
    net.add_module(name, layer)"""
CIFAR10_NET = "from resnet18 import ResNet18\nnet = ResNet18(10, 3, WIDTH)"
# Example: (how Python makes its net, its inputs, the optimizer's weight decay)
EXAMPLES = {"mnist": (MNIST_NET, "torch.randn(8, 1, 28, 28)", "0"), "cifar10": (CIFAR10_NET, "torch.randn(8, 3, 32, 32)", "5e-4")}


def write(python, example, path, width=64):
    """`python` has torch; `width` is cifar10's --width. Raises AssertionError with what Python says
    where it fails."""
    net, inputs, decay = EXAMPLES[example]
    script = SCRIPT.replace("NET", net).replace("INPUTS", inputs).replace("DECAY", decay).replace("WIDTH", str(width))
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, "-B", "-c", script, path, TWINS], env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode != 0:
        raise AssertionError(f"Python's checkpoint of {example}: exit code {done.returncode}: {done.stderr}")
