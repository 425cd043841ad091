"""The flag --mesh of gpt.py, as examples/gpt/mesh_flag.h reads it."""
import math
import re

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

AXES = "data", "sharded", "tensor", "pipeline"


def mesh_of(text):
    """The axes in the order in which they were given; the others have one rank."""
    given = re.findall(r"(?:^|,)(data|sharded|tensor|pipeline)=([1-9]\d{0,3})(?=,|$)", text)
    axes = {name: int(ranks) for name, ranks in given}
    if ",".join(map("=".join, given)) != text or len(axes) < len(given) or {"data", "sharded"} <= set(axes):
        raise SystemExit(f"--mesh: '{text}' given, expected AXIS=N,… of data or sharded, tensor and pipeline, each once")
    axes = {**{name: 1 for name in AXES if name not in axes}, **axes}
    if math.prod(axes.values()) != dist.get_world_size():
        raise SystemExit(f"--mesh: '{text}' given, expected axes whose product is the {dist.get_world_size()} workers")
    return init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
