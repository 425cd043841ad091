"""Records what torch.utils.data.DistributedSampler answers, for distributed_sampler_test.cc.

    .venv/bin/python tests/worker/data/record_sampler_vectors.py \\
        > tests/worker/data/sampler_vectors.txt

One line a case: n replicas drop_last shuffle seed epoch | hash. For small n the ranks' lists follow
it, each closed by ';'. The hash runs over all ranks' lists in rank order, each preceded by its
length.
"""
import itertools

import torch
from torch.utils.data.distributed import DistributedSampler

SAMPLES = (0, 1, 7, 24, 1000, 60000)
# 2**32 - 1 wraps with the epoch; torch seeds with the low 32 bits
SEEDS = (0, 5, 2**32 - 1, 2**40 + 7)
LISTED_UP_TO = 24


def fold(value, word):
    """FNV-1a over 64-bit words."""
    return ((value ^ word) * 0x100000001B3) % 2**64


def fingerprint(lists):
    value = 0xCBF29CE484222325
    for indices in lists:
        value = fold(value, len(indices))
        for index in indices:
            value = fold(value, index)
    return value


def record(n, replicas, drop_last, shuffle, seed, epoch):
    lists = []
    for rank in range(replicas):
        sampler = DistributedSampler(range(n), replicas, rank, shuffle, seed, drop_last)
        sampler.set_epoch(epoch)
        lists.append(list(sampler))
    line = f"{n} {replicas} {int(drop_last)} {int(shuffle)} {seed} {epoch} | {fingerprint(lists)}"
    if n <= LISTED_UP_TO:
        line += "".join(" " + " ".join(map(str, [*indices, ";"])) for indices in lists)
    print(line)


def main():
    print(f"# torch {torch.__version__.split('+')[0]}, recorded by record_sampler_vectors.py")
    for n, replicas, drop_last in itertools.product(SAMPLES, range(1, 6), (False, True)):
        record(n, replicas, drop_last, False, 0, 0)
        for seed, epoch in itertools.product(SEEDS, range(4)):
            record(n, replicas, drop_last, True, seed, epoch)


if __name__ == "__main__":
    main()
