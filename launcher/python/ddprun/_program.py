"""Finds the program `ddprun`."""

from __future__ import annotations

import importlib.metadata
import os
import shutil


def find_program() -> str:
    """The one that was installed with this package; else, from a source tree, the one on PATH."""
    try:
        files = importlib.metadata.distribution("ddprun").files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "ddprun" and file.parent.name == "bin":
            path = os.path.realpath(str(file.locate()))
            if os.access(path, os.X_OK):
                return path
    found = shutil.which("ddprun")
    if found is None:
        raise FileNotFoundError(
            "ddprun: no such program: neither installed with the Python package nor on PATH"
        )
    return found
