#!/usr/bin/env python3
"""A worker of tests/campaigns/preemption: DDP on Gloo. It says its rank when it has done ten steps.
In the end it writes the step after which it saved.

  preempted_worker.py handler|ending|hangs FIFO FOLDER
"""

import os
import pathlib
import signal
import sys

kind, fifo, folder = sys.argv[1:]
told = []
signal.signal(signal.SIGTERM, lambda signo, frame: told.append(signo))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

ending = None
if kind == "ending":
    import ddprun
    ending = ddprun.ending
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nobody may send it

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while not told and not (ending and ending()):
    optimizer.zero_grad()
    model(torch.ones(4, 8) * rank).sum().backward()
    optimizer.step()
    step += 1
    if step == 10:
        with open(fifo, "w") as file:
            file.write(f"{rank}\n")

if kind == "hangs" and rank == 1:
    while True:
        signal.pause()
weights = next(iter(model.parameters())).detach().numpy().tobytes().hex()
part = pathlib.Path(folder, f"{rank}.part")
part.write_text(f"{step} {weights}")
part.rename(pathlib.Path(folder, str(rank)))
os._exit(0)  # the others may be gone: no group is torn down
