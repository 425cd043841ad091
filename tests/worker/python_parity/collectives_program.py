"""The same as collectives_program.cc, with torch.distributed and Gloo."""
import datetime
import os
import sys

import torch
import torch.distributed as dist

TYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16, "int64": torch.int64,
         "int32": torch.int32, "int8": torch.int8, "uint8": torch.uint8, "complex64": torch.complex64,
         "complex128": torch.complex128}
OPERATIONS = {"sum": dist.ReduceOp.SUM, "average": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}


def input_of(kind, rank):
    torch.manual_seed(100 + rank)
    floats, integers = torch.randn(120, dtype=torch.float64), torch.randint(31, (120,))
    if kind.is_complex:
        return torch.complex(floats, floats.flip(0)).to(kind)
    return (floats if kind.is_floating_point else integers).to(kind)


class Program:
    def __init__(self):
        self.rank, self.ranks, self.lines = dist.get_rank(), dist.get_world_size(), []
        self.halves = [dist.new_group(list(range(color, self.ranks, 2))) for color in (0, 1)]

    def say(self, name, tensor):
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        self.lines.append(f"{self.rank}.{name} " + ",".join(map(repr, real.double().flatten().tolist())))

    def reduce(self, name, mine):
        for reduction, operation in OPERATIONS.items():
            divides = mine.is_floating_point() or mine.is_complex()
            if not divides if reduction == "average" else mine.is_complex() and reduction != "sum":
                continue
            result = mine.clone()
            dist.all_reduce(result, operation)
            # Gloo has none; a division of complex numbers would round in another way
            if reduction == "average":
                (torch.view_as_real(result) if mine.is_complex() else result).div_(self.ranks)
            if reduction == "average" and mine.element_size() == 2:  # ours rounds once
                every = [torch.empty_like(mine) for _ in range(self.ranks)]
                dist.all_gather(every, mine)
                result = torch.stack(every).double().mean(0).to(mine.dtype)
            self.say(f"{name}.{reduction}", result)
        group = mine.clone()
        dist.all_reduce(group, group=self.halves[self.rank % 2])
        self.say(f"{name}.group", group)
        if not mine.is_complex():
            part = torch.empty(10, dtype=mine.dtype)
            dist.reduce_scatter_tensor(part, torch.round(mine.double()).to(mine.dtype)[:self.ranks * 10].clone())
            self.say(f"{name}.scatter", part)

    def move(self, name, mine):
        gathered = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.all_gather(gathered, mine)
        self.say(f"{name}.gather", torch.stack(gathered))
        root = mine.clone()
        dist.broadcast(root, self.ranks - 1)
        self.say(f"{name}.broadcast", root)
        following, last, got = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks, torch.empty_like(mine)
        if self.rank != 0:
            dist.recv(got, last)
        dist.send(mine, following)
        if self.rank == 0:
            dist.recv(got, last)
        self.say(f"{name}.receive", got)
        self.exchange(name, mine)

    def exchange(self, name, mine):
        gives = [self.rank + to for to in range(self.ranks)]
        gets = [origin + self.rank for origin in range(self.ranks)]
        uneven, even = torch.empty(sum(gets), 3, dtype=mine.dtype), torch.empty_like(mine)
        dist.all_to_all_single(uneven, mine[:3 * sum(gives)].view(-1, 3).clone(), gets, gives)
        self.say(f"{name}.uneven", uneven)
        dist.all_to_all_single(even, mine)
        self.say(f"{name}.even", even)
        into = torch.empty(120 * self.ranks, dtype=mine.dtype)
        dist.all_gather_into_tensor(into, mine)
        self.say(f"{name}.into", into)

    def as_in_readme(self, name, mine):
        """Does as README.md's lines, with torch.distributed."""
        pair = torch.tensor([mine.real.double().sum().item(), 1.0 + self.rank], dtype=torch.float64)
        dist.all_reduce(pair)
        self.say(f"{name}.loss", pair[0] / pair[1])
        largest = mine.abs().max()
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        self.say(f"{name}.largest", largest)
        gathered = [torch.empty(2, 3, dtype=mine.dtype) for _ in range(self.ranks)]
        dist.all_gather(gathered, mine[:6].view(2, 3))
        self.say(f"{name}.all", torch.stack(gathered))
        total = mine.clone()
        dist.all_reduce(total, group=self.halves[self.rank % 2])
        self.say(f"{name}.half", total)
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))

    def do_all(self):
        for name, kind in TYPES.items():
            mine = input_of(kind, self.rank)
            self.reduce(name, mine)
            self.move(name, mine)
            self.as_in_readme(name, mine)
        self.move("bool", input_of(torch.int64, self.rank) > 15)
        pair = torch.tensor([1.25 * self.rank, self.rank + 1.0], dtype=torch.float64)
        dist.all_reduce(pair)
        self.say("mean", pair[0] / pair[1])
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))

    def print(self):
        for rank in range(self.ranks):
            if rank == self.rank:
                sys.stdout.write("\n".join(self.lines) + "\n")
                sys.stdout.flush()
            dist.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    program = Program()
    program.do_all()
    program.print()
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # while a process ends, PyTorch's own threads may abort it
