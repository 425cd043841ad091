"""PyTorch's side of bench/optimizers, as bench/optimizers.cc is ours.

    optimizers_torch.py plain|fused KIND[,KIND…] MIB STEPS [--device=cpu|cuda]

KIND may have @resnet50 behind it. bench/optimizers.cc says what that is. Prints for each kind a
line with its name and the median seconds of a step.
"""
import statistics
import sys
import time

import torch

sys.dont_write_bytecode = True

from step_models import make_model  # noqa: E402

WARM_UPS = 2
SIDE = 1024  # of a layer: 4 MiB


def parameters_of(model, mib, device):
    """Those of a model, or layers of 4 MiB. With gradients."""
    if model:
        parameters = list(make_model(model, device).parameters())
    else:
        parameters = [torch.randn(SIDE, SIDE, device=device, requires_grad=True) for _ in range(0, mib, 4)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters


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
        optimizer = optimizer_of(name, parameters_of(model, int(mib), device), how == "fused")
        print(kind, median_seconds(optimizer, int(steps), device), flush=True)


if __name__ == "__main__":
    main()
