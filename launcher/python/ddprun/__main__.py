"""`python -m ddprun` and the command `ddprun-launch`: the program of this environment, for this
interpreter."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._program import find_program


def run(called: str) -> NoReturn:
    """Becomes the program, which takes its manners from the name it is called by. PYTHON_EXEC of
    the user goes first."""
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.execv(find_program(), [called, *sys.argv[1:]])


def main() -> NoReturn:
    run("ddprun")


def launch_main() -> NoReturn:
    run("ddprun-launch")


if __name__ == "__main__":
    main()
