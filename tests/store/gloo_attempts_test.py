"""Two attempts of a 2-rank Gloo job on one server of ours, emptied in between:
gloo_attempts_test.py <store_test_server>.

In the second attempt rank 1 comes late, by an event: when rank 0 already waits for its address.
With the first attempt's keys still there rank 0 would not wait. It would find the address of a dead
process.
"""

import os
import subprocess
import sys

import stock

stock.use_torch()


def worker():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    assert total.item() == 3.0, total
    group = dist.new_group([0, 1])
    dist.all_reduce(total, group=group)
    assert total.item() == 6.0, total
    dist.monitored_barrier()
    dist.destroy_process_group()


def start(rank, port, v2):
    environment = dict(
        os.environ,
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        GLOO_ENABLE_STORE_V2_API=v2,
    )
    return subprocess.Popen([sys.executable, os.path.abspath(__file__), "--worker"], env=environment)


def wait_all(workers):
    for rank, process in enumerate(workers):
        assert process.wait(stock.PATIENCE_S) == 0, f"rank {rank} failed"


def run_attempts(server, v2):
    server.order("reset")
    wait_all([start(0, server.port, v2), start(1, server.port, v2)])
    assert server.order("keys") != "0", "the first attempt left nothing: this test proves nothing"
    server.order("reset")
    assert server.order("keys") == "0"
    first = start(0, server.port, v2)
    assert server.order("await 1") == "ok"  # the time limit of the test bounds this
    wait_all([first, start(1, server.port, v2)])


def main():
    if "--worker" in sys.argv:
        worker()
        return
    with stock.OurServer(sys.argv[1]) as server:
        for v2 in ("0", "1"):
            run_attempts(server, v2)
            print(f"ok two attempts, GLOO_ENABLE_STORE_V2_API={v2}", flush=True)


if __name__ == "__main__":
    main()
