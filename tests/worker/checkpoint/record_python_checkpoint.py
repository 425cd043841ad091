#!/usr/bin/env python3
"""Writes python_checkpoint.pt beside this file: what stock PyTorch saves, for tests that have no
PyTorch. Run it with .venv/bin/python."""

import pathlib

import torch

torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
net(torch.randn(4, 3)).sum().backward()
optimizer.step()
base = torch.arange(12, dtype=torch.float32)
torch.save({
    "epoch": 3, "arch": "tiny", "state_dict": net.state_dict(), "best_prec1": 91.5, "optimizer": optimizer.state_dict(),
    "numbers": [0, 255, 256, 65536, -1, 2**40, -2**40], "tuple": (None, True, False, ()), "nested": {1: {"a": ["x", "ü"]}},
    "half": torch.tensor([1.5, -2], dtype=torch.float16), "bfloat16": torch.tensor([3.0], dtype=torch.bfloat16),
    "transposed": base.view(3, 4).t(), "shared": [base[2:5], base[3:]], "scalar": torch.tensor(7), "size": base.view(3, 4).shape,
}, pathlib.Path(__file__).with_name("python_checkpoint.pt"))
