"""Does as pipeline_trainer.cc, with PyTorch's pipelining and DistributedDataParallel over Gloo."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from parity_trainer import Hash, print_ends

FEATURES, CLASSES, ROWS = 24, 7, 24
LAYERS, STEPS = 4, 5
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def made(seed, features):
    torch.manual_seed(seed)
    return nn.Linear(FEATURES, features)


class Stage(nn.Module):
    """The stage's share of the layers. The last one has a head, too."""

    def __init__(self, stage, stages):
        super().__init__()
        each = LAYERS // stages
        self.layers = nn.ModuleList(made(10 + i, FEATURES) for i in range(stage * each, (stage + 1) * each))
        self.head = made(2, CLASSES) if stage == stages - 1 else None

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x if self.head is None else self.head(x)


def joined(mine):
    """Hashes of all ranks, in rank order."""
    values = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
    dist.all_gather(values, torch.tensor([mine.value >> 1]))
    everything = Hash()
    for value in values:
        everything.add(value)
    return f"{everything.value:016x}"


def train(mode):
    schedule, micro_batches, *data = mode.split("-")
    copies = 2 if data else 1
    mesh = init_device_mesh("cpu", (copies, dist.get_world_size() // copies), mesh_dim_names=("data", "pipeline"))
    place, stages = mesh.get_local_rank("pipeline"), mesh["pipeline"].size()
    net = Stage(place, stages)
    model = DistributedDataParallel(net, process_group=mesh.get_group("data")) if data else net
    stage = PipelineStage(model, place, stages, torch.device("cpu"), group=mesh.get_group("pipeline"))
    pipeline = SCHEDULES[schedule](stage, int(micro_batches), nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9, foreach=False)
    losses, gradients, weights = Hash(), Hash(), Hash()
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.manual_seed(1000 + 10 * step + mesh.get_local_rank("data"))
        inputs = torch.randn(ROWS, FEATURES)
        targets = torch.randint(CLASSES, (ROWS,))
        of_micro_batches = []
        pipeline.step(*([inputs] if stage.is_first else []), target=targets if stage.is_last else None, losses=of_micro_batches, return_outputs=False)
        if stage.is_last:
            losses.add(torch.stack(of_micro_batches).mean())
        if step == 0:
            for parameter in net.parameters():
                gradients.add(parameter.grad)
        optimizer.step()
    for parameter in net.parameters():
        weights.add(parameter)
    return ":".join(joined(found) for found in (losses, gradients, weights))


if __name__ == "__main__":
    print_ends(train)
