"""The common parts of the scripts with stock PyTorch: finding it, and our server beside it."""

import os
import subprocess
import sys

SKIPPED = 77
PATIENCE_S = 120


def skip(reason):
    print(reason)
    sys.exit(SKIPPED)


def use_torch():
    """Continues this script under the project's own Python, the one that has torch; skips where
    there is none."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    python = os.environ.get("DDPRUN_TEST_PYTHON", os.path.join(root, ".venv", "bin", "python"))
    if not os.path.exists(python):
        skip(f"skipped: no {python}, so no stock PyTorch")
    if os.environ.get("DDPRUN_UNDER_TORCH") != "1":
        os.environ["DDPRUN_UNDER_TORCH"] = "1"
        os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
        os.execv(python, [python, *sys.argv])
    try:
        import torch.distributed  # noqa: F401
    except ImportError as error:
        skip(f"skipped: {python} cannot import torch: {error}")


class OurServer:
    """Our store server, in its own process, taking orders."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def order(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        assert self.process.wait(PATIENCE_S) == 0, "the server did not end well"
