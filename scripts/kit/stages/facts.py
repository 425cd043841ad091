"""The facts of the machine, and what the doctor says of it."""

import json
import platform
import subprocess

from kit import machine, manifest
from kit.stage import figure, tell

ASKED = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "memory.total",
         "power.limit", "ecc.mode.current", "compute_cap")
NO_GPU = "none"


def gpu():
    """Asks nvidia-smi about the first GPU. Returns NO_GPU if there is no answer."""
    command = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=8, check=True)
    except (OSError, subprocess.SubprocessError):
        return NO_GPU
    return dict(zip(ASKED, done.stdout.splitlines()[0].split(", ")))


def run(tools):
    torch = machine.find_torch(tools.python)
    found = gpu()
    tell(facts={"gpu": found, "kernel": platform.release(), "glibc": platform.libc_ver()[1],
                **torch.versions})
    if built_with := manifest.torch(machine.ROOT):
        figure("torch, and that of the programs", torch.versions["torch"].partition("+")[0],
               built_with, goal=["equal", None])
    figure("GPUs by nvidia-smi", 0 if found == NO_GPU else 1, goal=["at least", 1], gpu_only=True)
    said = json.loads(tools.output([tools.program("ddprun"), "--nproc-per-node=1", "doctor",
                                    "--json"], ok=(0, 1), PYTHON_EXEC=tools.python))
    checks = {check["what"]: check for check in said["checks"]}
    failed = [f"{what}: {check['fact']}" for what, check in checks.items()
              if check["level"] == "FAIL"]
    figure("doctor: failures", ", ".join(failed) or "none", goal=["is", "none"], gpu_only=True)
    figure("doctor: checks", len(checks), goal=["at least", 5])
    figure("doctor: names the GPU", checks.get("GPU 0", {}).get("fact", NO_GPU),
           goal=["is not", NO_GPU], gpu_only=True)
