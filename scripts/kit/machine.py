"""The machine of a run: its Python with torch, and where torch's libraries are."""

import json
import os
import pathlib
import subprocess
import sys

# The kit has the folders of the project, so this is its root, too.
ROOT = pathlib.Path(__file__).resolve().parents[2]
# Finds torch without importing it, which would take seconds.
FIND = """
import importlib.metadata, importlib.util, json, os, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
spec = importlib.util.find_spec("torch")
print(json.dumps({"folder": spec and os.path.dirname(spec.origin), "python": sys.version.split()[0],
                  "torch": version("torch"), "nccl": version("nvidia-nccl-cu13")}))
"""
LOOK_S = 60


class NoTorch(Exception):
    """No Python here has torch."""


class Torch:
    """A Python that has torch: `python`, the folder of torch, and `versions`."""

    def __init__(self, python, found):
        self.python, self.folder = str(python), pathlib.Path(found.pop("folder"))
        self.versions = found

    def libraries(self):
        """The folders of torch's own libraries, and of those that NVIDIA's packages bring."""
        nvidia = sorted(self.folder.parent.glob("nvidia/*/lib"))
        return [str(path) for path in (self.folder / "lib", *nvidia)]


def look_at(python):
    """Returns what a Python says of its torch, or None if it has none."""
    command = [str(python), "-c", FIND]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = json.loads(done.stdout) if done.returncode == 0 else {}
    return found if found.get("folder") else None


def find_torch(python=None):
    """The first Python with torch: the one that is named, else ours, the project's, and PATH's."""
    candidates = [python] if python else [sys.executable, ROOT / ".venv/bin/python", "python3"]
    for candidate in candidates:
        found = look_at(candidate)
        if found:
            return Torch(candidate, found)
    names = ", ".join(map(str, candidates))
    raise NoTorch(f"no torch in {names}: name a Python that has it with --python")


def environment(torch, dry):
    """The variables of each stage. A dry run sees no GPU, whatever the machine has."""
    ours = {"LD_LIBRARY_PATH": ":".join(torch.libraries()), "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "RES_OPTIONS": "timeout:1 attempts:1",
            "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    if dry:
        ours["CUDA_VISIBLE_DEVICES"] = ""
    found = {**os.environ, **ours}
    found.pop("NCCL_DEBUG", None)  # its words would come between those of the programs
    return found
