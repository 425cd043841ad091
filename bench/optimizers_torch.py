"""PyTorch's side of bench/optimizers, as bench/optimizers.cc is ours.

    optimizers_torch.py plain|fused KIND[,KIND…] MIB STEPS [--device=cpu|cuda]

KIND may have @resnet50 behind it. bench/optimizers.cc says what that is. Prints for each kind a
line with its name and the median seconds of a step.
"""
import statistics
import sys
import time

import torch

WARM_UPS = 2
SIDE = 1024  # of a layer: 4 MiB


def sizes_of_resnet50():
    """As in torchvision: 161 parameters, 25.6 million numbers."""
    sizes = []

    def add(to, of, side):
        sizes.extend([(to, of, side, side), (to,), (to,)])  # with its batch norm

    add(64, 3, 7)
    of = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            add(width, of, 1)
            add(width, width, 3)
            add(4 * width, width, 1)
            if block == 0:
                add(4 * width, of, 1)
            of = 4 * width
    return [*sizes, (1000, of), (1000,)]


def optimizer_of(kind, parameters, fused):
    # Else PyTorch chooses by itself: one loop on a CPU, several tensors at once on a GPU.
    more = {"fused": True} if fused else {}
    if kind == "adam":
        return torch.optim.Adam(parameters, 1e-3, **more)
    if kind == "adamw":
        return torch.optim.AdamW(parameters, 1e-3, **more)
    decay = 5e-4 if kind == "sgd-decay" else 0
    return torch.optim.SGD(parameters, 1e-3, momentum=0.9, weight_decay=decay, **more)


def median_seconds(optimizer, steps, device):
    times = []
    for _ in range(WARM_UPS + steps):
        start = time.perf_counter()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median_high(times[WARM_UPS:])


def main():
    how, kinds, mib, steps, *more = sys.argv[1:]
    device = more[0].removeprefix("--device=") if more else "cpu"
    torch.set_num_threads(1)
    for kind in kinds.split(","):
        name, _, model = kind.partition("@")
        sizes = sizes_of_resnet50() if model else [(SIDE, SIDE)] * len(range(0, int(mib), 4))
        parameters = [torch.randn(each, device=device, requires_grad=True) for each in sizes]
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, device=device)
        optimizer = optimizer_of(name, parameters, how == "fused")
        print(kind, median_seconds(optimizer, int(steps), device), flush=True)


if __name__ == "__main__":
    main()
