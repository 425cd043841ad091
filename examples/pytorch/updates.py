"""Gradients by a parameter server and around a ring, with torch.distributed's send and recv: how
many bytes each rank sends.

    torchrun --standalone --nproc-per-node=4 examples/pytorch/updates.py

The counts are those of build/bin/updates, which also trains asynchronously and in shared memory.
"""
import argparse

import torch
import torch.distributed as dist


class CountedLinks:
    def __init__(self):
        self.sent = self.received = 0

    def send(self, tensor, to):
        dist.send(tensor, to)
        self.sent += tensor.nbytes

    def receive(self, tensor, source):
        dist.recv(tensor, source)
        self.received += tensor.nbytes


def sum_at_server(links, gradient):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank != 0:
        links.send(gradient, 0)
        links.receive(gradient, 0)
        return
    other = torch.empty_like(gradient)
    for peer in range(1, ranks):
        links.receive(other, peer)
        gradient += other
    for peer in range(1, ranks):
        links.send(gradient, peer)


def sum_around_ring(links, gradient):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = gradient.view(ranks, -1)
    other = torch.empty_like(chunks[0])
    for step in range(2 * (ranks - 1)):
        outward, inward = chunks[(rank - step) % ranks].clone(), chunks[(rank - step - 1) % ranks]
        if rank % 2 == 0:
            links.send(outward, (rank + 1) % ranks)
        links.receive(other, (rank - 1) % ranks)
        if rank % 2 != 0:
            links.send(outward, (rank + 1) % ranks)
        inward.copy_(inward + other if step < ranks - 1 else other)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", type=int, default=7980, help="of a gradient, a multiple of the ranks")
    numbers = parser.parse_args().numbers
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = 4 * numbers
    for way, add, formulas in (("parameter server", sum_at_server, {"rank 0 sends and receives 2(N-1)K": 2 * (ranks - 1) * size}),
                               ("ring", sum_around_ring, {f"each rank {verb} 2K(N-1)/N": 2 * size * (ranks - 1) // ranks for verb in ("sends", "receives")})):
        links, gradient = CountedLinks(), torch.arange(numbers, dtype=torch.float32) + rank
        expected = gradient.clone()
        dist.all_reduce(expected)
        add(links, gradient)
        assert torch.equal(gradient, expected), way
        counts = [torch.zeros(2, dtype=torch.int64) for _ in range(ranks)]
        dist.all_gather(counts, torch.tensor([links.sent, links.received]))
        if rank == 0:
            print(way)
            for what, formula in formulas.items():
                counted = [counts[0].sum().item()] if "rank 0" in what else [count[int("receives" in what)].item() for count in counts]
                assert set(counted) == {formula}, (what, counted, formula)
                print(f"  {what}: {', '.join(map(str, counted))} bytes a step = {formula}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
