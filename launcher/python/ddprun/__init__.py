"""ddprun from Python: launch() runs a function in several worker processes; `python -m ddprun` is
the command ddprun.

Only the standard library, and only what a launch needs: neither this package nor what it starts
imports torch.
"""

from ._launch import Failed, launch

__all__ = ["Failed", "launch"]
