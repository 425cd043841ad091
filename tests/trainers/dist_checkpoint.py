"""torch.distributed.checkpoint: dist_checkpoint.py FOLDER [--die-once]

Trains an epoch, saves, trains another, goes back to what it saved and trains that epoch again. With
--die-once it is the next attempt that goes back. An optimizer's state or a weight that is not
restored shows in the loss.
"""

import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import tiny


def save(folder, model, optimizer):
    weights, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=folder / "saved")


def load(folder, model, optimizer):
    weights, state = get_state_dict(model, optimizer)
    checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id=folder / "saved")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    model = fully_shard(tiny.network(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if tiny.attempt() == 0:
        tiny.train(model, optimizer, epochs=1)
        save(folder, model, optimizer)
        tiny.train(model, optimizer, epochs=1)
        if "--die-once" in sys.argv:
            tiny.die_once()
            dist.barrier()  # rank 0 never gets through
    load(folder, model, optimizer)
    tiny.report(tiny.train(model, optimizer, epochs=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
