"""The sum of the gradients by MPI: by a parameter server, around a ring, and by MPI itself.

    mpirun -n 4 python3 examples/pytorch/mpi4py_sum.py
    ddprun --nproc-per-node=1 --no-python mpirun -n 4 python3 examples/pytorch/mpi4py_sum.py

mpi4py comes from PyPI, and mpirun from Open MPI. The counts are those of build/bin/updates and
examples/pytorch/updates.py. With the second line and --max-restarts ddprun starts mpirun again
when a rank dies.
"""
import argparse
import os
import sys

import numpy
from mpi4py import MPI

RANKS = MPI.COMM_WORLD


class CountedLinks:
    def __init__(self):
        self.sent = self.received = 0

    def send(self, numbers, to):
        RANKS.Send(numbers, dest=to)
        self.sent += numbers.nbytes

    def receive(self, numbers, source):
        RANKS.Recv(numbers, source=source)
        self.received += numbers.nbytes


def sum_at_server(links, gradient):
    rank, ranks = RANKS.Get_rank(), RANKS.Get_size()
    if rank != 0:
        links.send(gradient, 0)
        links.receive(gradient, 0)
        return
    other = numpy.empty_like(gradient)
    for peer in range(1, ranks):
        links.receive(other, peer)
        gradient += other
    for peer in range(1, ranks):
        links.send(gradient, peer)


def sum_around_ring(links, gradient):
    rank, ranks = RANKS.Get_rank(), RANKS.Get_size()
    chunks = gradient.reshape(ranks, -1)  # rows of the same memory
    other = numpy.empty_like(chunks[0])
    for step in range(2 * (ranks - 1)):
        outward, inward = chunks[(rank - step) % ranks], chunks[(rank - step - 1) % ranks]
        # Send() may wait until all is received: if all ranks sent first, all would wait.
        if rank % 2 == 0:
            links.send(outward, (rank + 1) % ranks)
        links.receive(other, (rank - 1) % ranks)
        if rank % 2 != 0:
            links.send(outward, (rank + 1) % ranks)
        inward[:] = inward + other if step < ranks - 1 else other


def refusal(numbers):
    """Why the ranks cannot sum so many numbers; None if they can."""
    ranks, world = RANKS.Get_size(), int(os.environ.get("WORLD_SIZE") or 1)
    if ranks == 1 and world > 1:
        return f"MPI sees one rank, and the launcher has {world}: start the ranks by mpirun -n {world}"
    if numbers < ranks or numbers % ranks:
        return f"--numbers={numbers}: expected a multiple of the {ranks} ranks"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=int, default=7980, help="of a gradient, a multiple of the ranks")
    numbers = parser.parse_args().numbers
    if why := refusal(numbers):
        if RANKS.Get_rank() == 0:
            print(f"mpi4py_sum: {why}", file=sys.stderr)
        return 2
    rank, ranks = RANKS.Get_rank(), RANKS.Get_size()
    size = 4 * numbers
    for way, add, formulas in (("parameter server", sum_at_server, {"rank 0 sends and receives 2(N-1)K": 2 * (ranks - 1) * size}),
                               ("ring", sum_around_ring, {f"each rank {verb} 2K(N-1)/N": 2 * size * (ranks - 1) // ranks for verb in ("sends", "receives")})):
        links, gradient = CountedLinks(), numpy.arange(numbers, dtype=numpy.float32) + rank
        expected = numpy.empty_like(gradient)
        RANKS.Allreduce(gradient, expected)
        add(links, gradient)
        assert numpy.array_equal(gradient, expected), way
        counts = RANKS.allgather((links.sent, links.received))
        if rank == 0:
            print(way)
            for what, formula in formulas.items():
                counted = [sum(counts[0])] if "rank 0" in what else [count["receives" in what] for count in counts]
                assert set(counted) == {formula}, (what, counted, formula)
                print(f"  {what}: {', '.join(map(str, counted))} bytes a step = {formula}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
