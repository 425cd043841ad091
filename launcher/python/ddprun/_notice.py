"""A worker asks whether it should save: docs/preemption.md of the project. The hook in the worker
knows (agent/standby/python/notice.py)."""

from __future__ import annotations

import os
import sys
from typing import Any


def _hook() -> Any:
    """None: this is no worker of ddprun, or --python-hook=0 is given."""
    return next((one for one in sys.meta_path if hasattr(one, "should_save")), None)


def ending() -> bool:
    """Whether the job ends, and this rank has done the step after which all ranks save."""
    hook = _hook()
    return hook.ending() if hook else os.path.exists(os.environ.get("DDPRUN_NOTICE", ""))


def should_save() -> bool:
    """Whether all ranks save after this step. True once for each time."""
    hook = _hook()
    return bool(hook) and hook.should_save()
