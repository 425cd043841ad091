"""fastai's Learner in its parallel_ctx, and then in its distrib_ctx: with_fastai.py FOLDER

fastai sends the order of the rows through GPUs alone, for NCCL. CpuLoader sends it through Gloo.
"""

import torch
import torch.distributed as dist
from accelerate import PartialState
from fastai.basics import DataLoader, DataLoaders, Learner, MSELossFlat, set_seed
from fastai.distributed import DistributedDL

import tiny


class CpuLoader(DistributedDL):
    def _broadcast(self, t, rank):
        t = torch.tensor(t)
        dist.broadcast(t, rank)
        return t.tolist()


def learner():
    """The tiny problem, with the same weights and the same order of rows on every rank."""
    set_seed(1)
    rows = list(zip(*tiny.data().tensors))
    loaders = DataLoader(rows, bs=tiny.BATCH, shuffle=True), DataLoader(rows[:16], bs=tiny.BATCH)
    return Learner(DataLoaders(*loaders, device="cpu"), tiny.network(), loss_func=MSELossFlat())


def alone():
    """The loss after an epoch in parallel_ctx: one process, all of its devices. Without a GPU that
    is the module itself."""
    learn = learner()
    with learn.no_bar(), learn.no_logging(), learn.parallel_ctx():
        learn.fit(1, lr=0.01)
    return learn.recorder.losses[-1].item()


def together():
    """The mean over the ranks of the last step's loss, after two epochs in distrib_ctx."""
    learn = learner()
    with learn.no_bar(), learn.no_logging(), learn.distrib_ctx(sync_bn=False, cpu=True):
        learn.dls.loaders = [CpuLoader(loader, device="cpu") for loader in learn.dls]
        learn.fit(2, lr=0.01)
    steps = len(learn.recorder.losses)
    if steps != 12:
        raise RuntimeError(f"{steps} steps: the ranks did not share the data")
    total = learn.recorder.losses[-1].clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def main():
    PartialState(cpu=True)  # makes the process group, as accelerate's scripts do
    first = alone()
    tiny.report(first + together())


if __name__ == "__main__":
    main()
