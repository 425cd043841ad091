"""Records the batches of torch.utils.data.DataLoader with a DistributedSampler, for
batch_loader_test.cc.

    .venv/bin/python tests/worker/data/record_loader_vectors.py \\
        > tests/worker/data/loader_vectors.txt

One line a case: n replicas rank batch_size drop_last workers epoch | the batches, each closed by
';'.
"""
import itertools

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

SEED = 4


def record(n, replicas, batch_size, drop_last, workers, epoch):
    for rank in range(replicas):
        sampler = DistributedSampler(range(n), replicas, rank, seed=SEED)
        sampler.set_epoch(epoch)
        loader = DataLoader(range(n), batch_size, sampler=sampler, num_workers=workers, drop_last=drop_last)
        batches = [" ".join(map(str, [*batch.tolist(), ";"])) for batch in loader]
        assert len(batches) == len(loader)
        print(n, replicas, rank, batch_size, int(drop_last), workers, epoch, "|", *batches)


def main():
    print(f"# torch {torch.__version__.split('+')[0]}, recorded by record_loader_vectors.py")
    for n, replicas, batch_size, drop_last in itertools.product((1, 7, 24, 103), (1, 2, 3), (1, 4, 8), (False, True)):
        record(n, replicas, batch_size, drop_last, 2 if batch_size == 8 else 0, n % 3)


if __name__ == "__main__":
    main()
