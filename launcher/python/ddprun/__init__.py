"""ddprun from Python: launch() and elastic_launch() run a function in several worker processes;
`python -m ddprun` is the command ddprun.

Only the standard library, and only what a launch needs: neither this package nor what it starts
imports torch. An error of torch's own class is made where torch is there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._elastic import elastic_launch
    from ._launch import Failed, launch
    from ._launch_config import DefaultLogsSpecs, LaunchConfig
    from ._notice import ending, should_save

__all__ = ["DefaultLogsSpecs", "Failed", "LaunchConfig", "elastic_launch", "ending", "launch",
           "should_save"]

_MODULES = {
    "DefaultLogsSpecs": "_launch_config",
    "Failed": "_launch",
    "LaunchConfig": "_launch_config",
    "elastic_launch": "_elastic",
    "ending": "_notice",
    "launch": "_launch",
    "should_save": "_notice",
}


def __getattr__(name: str) -> Any:
    """Imports what is used: an interpreter that only waits for torch pays for nothing else."""
    if name not in _MODULES:
        raise AttributeError(f"module 'ddprun' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
