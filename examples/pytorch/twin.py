"""The common parts of the Python twins of the C++ examples. They run under torchrun or ddprun."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from ddp_mnist import device_of, mean_over_ranks, meet


def options_of(about, data=True, **defaults):
    """--data, if wanted, and a flag for each default: `batch_size=64` is --batch-size. One that is
    False takes no value."""
    parser = argparse.ArgumentParser(description=about)
    if data:
        parser.add_argument("--data", required=True)
    for name, default in defaults.items():
        how = {"action": "store_true"} if default is False else {"type": type(default), "default": default}
        parser.add_argument("--" + name.replace("_", "-"), **how)
    options = parser.parse_args()
    torch.set_num_threads(1)
    meet(getattr(options, "device", "cpu"))
    return options


def train_epoch(loader, model, optimizer, bf16=False):
    """Trains on batches of (inputs…, targets). The sum of the losses of this rank's samples, and
    how many these are.

    bf16: the forward pass computes in bfloat16 where that is enough; the loss and the weights stay
    in float32.
    """
    total, count, device = 0.0, 0, device_of(model)
    for batch in loader:
        *inputs, targets = (part.to(device) for part in batch)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            scores = model(*inputs).float()
        loss = nn.functional.cross_entropy(scores, targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(targets)
        count += len(targets)
    return total, count


def say_epoch(epoch, epochs, loss):
    mean = mean_over_ranks(*loss)
    say(f"epoch {epoch + 1}/{epochs} loss={mean}")


def say_result(net, held_out, batch_size, collate=None):
    """The last lines of a twin. The ranks share the held-out samples."""
    net.eval()
    right, mine = 0, mine_of(len(held_out))
    with torch.no_grad():
        for batch in DataLoader(Subset(held_out, mine), batch_size, collate_fn=collate):
            *inputs, targets = (part.to(device_of(net)) for part in batch)
            right += net(*inputs).argmax(1).eq(targets).sum().item()
    accuracy = mean_over_ranks(right, len(mine))
    say(f"weights={checksum(net):016x}\naccuracy={accuracy:.4f}")


def made_set(seed, count):
    """made_set.h of the C++ examples: rows of 20 random numbers. The class says which of the first
    10 is the largest."""
    torch.manual_seed(seed)
    inputs = torch.randn(count, 20)
    return TensorDataset(inputs, inputs[:, :10].argmax(1))


def made_net(hidden_layers, width):
    torch.manual_seed(1)
    layers = []
    for layer in range(hidden_layers):
        layers += nn.Linear(width if layer else 20, width), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(width, 10))


def mine_of(count):
    """Each held-out sample on one rank."""
    return range(dist.get_rank(), count, dist.get_world_size())


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def checksum(net):
    """FNV-1a over parameters and buffers: checksum() of the engine."""
    value = 0xCBF29CE484222325
    for tensor in (*net.parameters(), *net.buffers()):
        for byte in tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist():
            value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value
