"""One of two ranks of a Gloo job: rank 1 dies in attempt 0 and is three seconds late in attempt 1.

gloo_worker.py FILE: appends "ATTEMPT RANK WORD" to FILE when it starts and when it is done.
"""

import datetime
import os
import sys
import time

LATE_S = 3  # the process group of rank 0 then meets whatever the attempt before left in the store
TIMEOUT = datetime.timedelta(seconds=60)
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
RANK = int(os.environ["RANK"])


def say(word):
    """In one write, which no other one can get into."""
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{ATTEMPT} {RANK} {word}\n".encode())
    os.close(file)


def add_up(dist, torch):
    total = torch.tensor([RANK + 1.0])
    dist.all_reduce(total)
    assert total.item() == 3.0, total


def main():
    say("start")
    import torch
    import torch.distributed as dist

    if ATTEMPT == 1 and RANK == 1:
        time.sleep(LATE_S)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    add_up(dist, torch)
    if ATTEMPT == 0:
        if RANK == 1:
            say("dies")
            os._exit(7)
        add_up(dist, torch)  # never ends well
    dist.destroy_process_group()
    say("done")


if __name__ == "__main__":
    main()
