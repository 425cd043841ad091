"""Does as parity_trainer.cc, with PyTorch's DistributedDataParallel and Gloo, or NCCL on GPUs."""
import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

STEPS = 20
DTYPES = {"float16": torch.half, "bfloat16": torch.bfloat16, "bfloat16_copy": torch.bfloat16}
SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4}
# Without PyTorch's name bf16_compress_hook: by that name it is refused where NCCL is absent. Gloo
# can do it.
WIRES = {"float16_wire": (2**-11, default_hooks.fp16_compress_hook),
         "bfloat16_wire": (2**-8, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket))}


class ParityNet(torch.nn.Module):
    def __init__(self, with_norm):
        super().__init__()
        self.first = torch.nn.Linear(20, 32)
        if with_norm:
            self.norm = torch.nn.BatchNorm1d(32)
        self.with_norm = with_norm
        self.aside = torch.nn.Linear(32, 32)
        self.last = torch.nn.Linear(32, 10)

    def forward(self, x, use_aside):
        hidden = self.first(x)
        if self.with_norm:
            hidden = self.norm(hidden)
        hidden = torch.tanh(hidden)
        if use_aside:
            hidden = hidden + self.aside(hidden)
        return self.last(hidden)


def made_net(mode):
    net = ParityNet(mode == "batch_norm")
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.2)
    return net.to(device_of()).to(DTYPES.get(mode, torch.float))


def device_of():
    """The device on which a rank trains: its GPU if the ranks met by NCCL."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def batch_of(seed):
    """Samples and labels of a pass, the same on each device."""
    torch.manual_seed(seed)
    x = torch.randn(8, 20)
    return x.to(device_of()), torch.randint(10, (8,)).to(device_of())


class Hash:
    """FNV-1a, 64 bits."""

    def __init__(self):
        self.value = 0xCBF29CE484222325

    def add(self, tensor):
        value = self.value
        for byte in tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist():
            value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        self.value = value


def hash_of(net):
    found = Hash()
    for tensor in (*net.parameters(), *net.buffers()):
        found.add(tensor)
    return found.value


def uses_aside(mode, step, rank):
    if mode == "static":
        return False
    return mode != "unused" or step % 4 == rank


def train(mode, rank):
    net = made_net(mode)
    parallel = DistributedDataParallel(net, find_unused_parameters=mode == "unused", static_graph=mode == "static",
                                       gradient_as_bucket_view=not mode.endswith("_copy"))
    if mode == "power_sgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    if mode == "in_backward":  # its newer form for this needs a GPU
        parallel._register_fused_optim(torch.optim.SGD, **SGD)
    # On GPUs its default computes several tensors at once, and may round otherwise.
    optimizer = torch.optim.SGD(net.parameters(), foreach=False, **SGD)
    gradients = Hash()
    micro_batches = 4 if mode == "no_sync" else 1
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(micro_batches):
            x, y = batch_of(1000 * step + 10 * part + rank)
            with parallel.no_sync() if part + 1 < micro_batches else contextlib.nullcontext():
                out = parallel(x.to(DTYPES.get(mode, torch.float)), uses_aside(mode, step, rank))
                (torch.nn.functional.cross_entropy(out, y) / micro_batches).backward()
        if mode == "in_backward":  # PyTorch's gradients stay, and ours go with their steps
            continue
        for parameter in net.parameters():
            if parameter.grad is not None:
                gradients.add(parameter.grad)
        optimizer.step()
    if mode == "power_sgd":
        return ",".join(str(value) for tensor in net.parameters() for value in tensor.detach().reshape(-1).tolist())
    return f"{hash_of(net):016x}:{gradients.value:016x}"


def gradients_of(parallel, net, rank):
    """The gradients of one pass, in a row."""
    net.zero_grad()
    x, y = batch_of(rank)
    torch.nn.functional.cross_entropy(parallel(x, True), y).backward()
    return torch.cat([parameter.grad.reshape(-1) for parameter in net.parameters()]).double()


def wire_error(mode, rank, world_size):
    net = made_net(mode)
    parallel = DistributedDataParallel(net, gradient_as_bucket_view=True)
    epsilon, hook = WIRES[mode]
    parallel.register_comm_hook(None, hook)
    with parallel.no_sync():
        local = gradients_of(parallel, net, rank)
    truth = local / world_size
    magnitude = truth.abs()
    dist.all_reduce(truth)
    dist.all_reduce(magnitude)
    error = (gradients_of(parallel, net, rank) - truth).abs()
    return f"{(error / (2 * epsilon * magnitude + 1e-7)).max().item()},{error.mean().item()}"


def end_of(mode):
    rank = dist.get_rank()
    return wire_error(mode, rank, dist.get_world_size()) if mode in WIRES else train(mode, rank)


def meet(device):
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    else:
        dist.init_process_group("gloo")


def print_ends(end_of):
    """Each word of the command line is a mode: rank 0 prints it and `end_of(mode)`, which all ranks
    call. The first word may be --device=cpu or --device=cuda. Does not return."""
    torch.set_num_threads(1)
    modes = sys.argv[1:]
    if modes and modes[0].startswith("--device="):
        meet(modes.pop(0).removeprefix("--device="))
    else:
        meet("cpu")
    for mode in modes:
        end = end_of(mode)
        if dist.get_rank() == 0:
            print(mode, end, flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # while a process ends, PyTorch's own threads may abort it


if __name__ == "__main__":
    print_ends(end_of)
