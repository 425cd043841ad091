"""One rank of a stock DDP + Gloo script that stands still in its own way after some steps.

standing_worker.py KIND FILE: the last rank is to blame where one is. Each rank appends one line to
FILE when it has done its last step before that. KINDS says what a verdict must say of each kind.
A rank that ends is none of them: Gloo's connections break then, and the others fail at once.
"""

import ctypes
import os
import signal
import sys
import threading
import time

STEPS, STEP_S, LAST_S = 10, 0.2, 1000
# The verdict's words, {rank} for the one to blame. None: no alarm, since a rank is at work.
KINDS = {
    "sleep": r"rank {rank}( on \S+)? does nothing at stand_still \(standing_worker.py:\d+\)",
    "lock": r"rank {rank}( on \S+)? does nothing at stand_still \(standing_worker.py:\d+\)",
    "loader": r"rank {rank}( on \S+)? does nothing at stand_still \(standing_worker.py:\d+\)",
    "pipe": r"rank {rank}( on \S+)? does nothing at stand_still \(standing_worker.py:\d+\)",
    "store": r"rank {rank}( on \S+)? does nothing at stand_still \(standing_worker.py:\d+\)",
    "swallowed": r"rank {rank}( on \S+)? does nothing at stand_still \(standing_worker.py:\d+\)",
    "thread": r"rank {rank}( on \S+)? does nothing at stand_still \(standing_worker.py:\d+\)",
    "barrier": r"rank {rank}( on \S+)? waits? in barrier #|in barrier #\d+ at",
    "more": r"wait",
    "order": r"of group \d+",
    "stopped": r"rank {rank}( on \S+)? is stopped",
    "held": r"rank {rank}( on \S+)? does nothing, and no Python runs in it",
    "receive": r"rank {rank}( on \S+)? does nothing|recv",
    "spin": None,
    "held_spin": None,
    "checkpoint": None,
    "evaluation": None,
}


def stand_still(kind, torch, dist, rank, groups):
    guilty = rank == dist.get_world_size() - 1
    if kind == "sleep" and guilty:
        time.sleep(LAST_S)
    elif kind == "lock" and guilty:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif kind == "loader" and guilty:
        next(iter(torch.utils.data.DataLoader(Stuck(), num_workers=1)))
    elif kind == "pipe" and guilty:
        os.read(os.pipe()[0], 1)
    elif kind == "store" and guilty:
        dist.distributed_c10d._get_default_store().get("never set")
    elif kind == "swallowed" and guilty:
        try:
            raise OSError("the disk is full")
        except OSError:
            threading.Event().wait()
    elif kind == "thread" and guilty:
        thread = threading.Thread(target=time.sleep, args=(LAST_S,), daemon=True)
        thread.start()
        thread.join()
    elif kind == "barrier":
        dist.barrier() if guilty else dist.all_reduce(torch.ones(3))
    elif kind == "more" and guilty:
        dist.barrier()
    elif kind == "order":
        for group in groups[::-1] if guilty else groups:
            dist.barrier(group)
    elif kind == "stopped" and guilty:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "held" and guilty:
        ctypes.PyDLL(None).sleep(LAST_S)
    elif kind == "receive":
        time.sleep(LAST_S) if guilty else dist.recv(torch.ones(1), dist.get_world_size() - 1)
    elif kind == "spin" and guilty:
        while True:
            pass
    elif kind == "held_spin" and guilty:
        ctypes.PyDLL(None).qsort(ctypes.create_string_buffer(1 << 24), 1 << 24, 1,
                                 ctypes.cast(ctypes.PyDLL(None).strcmp, ctypes.c_void_p))
        while True:
            pass
    elif kind == "checkpoint" and guilty:
        end = time.monotonic() + 40
        with open(os.devnull, "wb") as file:
            while time.monotonic() < end:
                torch.save(torch.ones(1 << 20), file)
    elif kind == "evaluation" and guilty:
        end = time.monotonic() + 40
        while time.monotonic() < end:
            torch.ones(256, 256) @ torch.ones(256, 256)


class Stuck:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        time.sleep(LAST_S)


def main():
    kind, file = sys.argv[1:]
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group() for _ in range(2)]
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(2 * STEPS):
        optimizer.zero_grad()
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(STEP_S)
        if step == STEPS:
            with open(file, "a") as told:
                told.write(f"{rank} {time.time()}\n")
            stand_still(kind, torch, dist, rank, groups)


if __name__ == "__main__":
    main()
