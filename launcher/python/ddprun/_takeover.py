"""Has torch's launchers start ddprun. ddprun.pth imports it if DDPRUN_TAKES_OVER is 1, and not
otherwise.

torch.distributed.run.run() and main() and elastic_launch all end in launch_agent() of one module.
That function is replaced when the module is imported.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence

MODULE = "torch.distributed.launcher.api"


def _launch_agent(
    config: Any, entrypoint: Any, args: List[Any], health_check_server: Any = None
) -> Dict[int, Any]:
    """Is torch's function with ddprun as the agent. From 2.14 on torch names a health check server
    of the caller. That one answers by itself, and is left to its caller.
    """
    from ._elastic import launch_agent  # only who launches pays for it

    return launch_agent(config, entrypoint, args)


class Finder:
    """Finds MODULE as the finders behind it do, and replaces its function once it is there."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name != MODULE:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        finds = filter(None, (getattr(finder, "find_spec", None) for finder in others))
        spec = next(filter(None, (find(name, path, target) for find in finds)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                setattr(module, "launch_agent", _launch_agent)

            setattr(spec.loader, "exec_module", exec_module)
        return spec


sys.meta_path.insert(0, Finder())
