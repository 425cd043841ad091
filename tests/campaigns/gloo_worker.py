"""One of two ranks of a Gloo job. Rank 1 dies in attempt 0 and comes late in attempt 1.

gloo_worker.py FILE: appends "ATTEMPT RANK WORD" to FILE when it starts and when it is done. CLEAN
is what FILE then says, sorted, where the restart met nothing of the attempt before.
"""

import datetime
import os
import sys
import time

# From the moment in which rank 0 makes its process group. That then meets whatever the attempt
# before left in the store.
LATE_S = 1
TIMEOUT = datetime.timedelta(seconds=60)
CLEAN = ["0 0 start", "0 1 dies", "0 1 start", "1 0 done", "1 0 start", "1 1 done", "1 1 start"]


def say(attempt, rank, word):
    """In one write, which no other one can get into."""
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{attempt} {rank} {word}\n".encode())
    os.close(file)


def add_up(dist, torch):
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    assert total.item() == 3.0, total


def main():
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    say(attempt, rank, "start")
    import torch
    import torch.distributed as dist

    joins = sys.argv[1] + ".joins"
    if attempt == 1 and rank == 0:
        os.close(os.open(joins, os.O_CREAT | os.O_WRONLY))
    if attempt == 1 and rank == 1:
        while not os.path.exists(joins):  # its test has a deadline
            time.sleep(0.02)
        time.sleep(LATE_S)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    add_up(dist, torch)
    if attempt == 0:
        if rank == 1:
            say(attempt, rank, "dies")
            os._exit(7)
        add_up(dist, torch)  # never ends well
    dist.destroy_process_group()
    say(attempt, rank, "done")
    os._exit(0)  # PyTorch's own exit aborts now and then, under any launcher


if __name__ == "__main__":
    main()
