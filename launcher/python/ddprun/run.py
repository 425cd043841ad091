"""`python -m ddprun.run`: takes the arguments of `python -m torch.distributed.run`.

It is the command ddprun, as `python -m ddprun` is.
"""

from __future__ import annotations

from .__main__ import main

if __name__ == "__main__":
    main()
