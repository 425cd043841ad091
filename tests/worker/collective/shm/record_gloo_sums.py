"""Records what Gloo's all-reduce answers with three ranks and more, for gloo_order_test.cc.

    .venv/bin/python tests/worker/collective/shm/record_gloo_sums.py \\
        > tests/worker/collective/shm/gloo_sums.txt

One line a case: ranks elements | hash of the float32 sums' bits. Element i of rank r is ((i *
2654435761 + r * 40503) mod 100003) / 7. So the order of the additions shows in the last bits.
"""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = (3, 4)
# one element, fewer than ranks, odd ones, and around a chunk, a segment of 1 MiB and several of
# them
COUNTS = (1, 2, 3, 5, 1000, 4097, 65_536, 262_144, 262_145, 300_000, 1_048_577, 3_000_001)


def inputs(rank, count):
    numerators = (torch.arange(count, dtype=torch.int64) * 2654435761 + rank * 40503) % 100003
    return numerators.to(torch.float32) / torch.tensor(7.0, dtype=torch.float32)


def fingerprint(sums):
    """FNV-1a over the 32-bit words."""
    value = 0xCBF29CE484222325
    for word in sums.view(torch.int32).tolist():
        value = ((value ^ (word & 0xFFFFFFFF)) * 0x100000001B3) % 2**64
    return value


def sum_on_rank(rank, ranks, store_file):
    store = dist.FileStore(store_file, ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    for count in COUNTS:
        sums = inputs(rank, count)
        dist.all_reduce(sums)
        if rank == 0:
            print(f"{ranks} {count} | {fingerprint(sums)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    print(f"# torch {torch.__version__.split('+')[0]} with Gloo, recorded by record_gloo_sums.py", flush=True)
    for ranks in RANKS:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(sum_on_rank, (ranks, os.path.join(folder, "store")), nprocs=ranks)


if __name__ == "__main__":
    main()
