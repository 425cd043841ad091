#!/usr/bin/env python3
"""torch's own counts in device_lists.txt: torch.cuda counts four devices under each list of it, for
NVIDIA and for ROCm. The driver's library is not there, so its four answers are made up."""

import contextlib
import pathlib
import sys
import unittest
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / "house"), *map(str, (ROOT / ".venv").glob("lib/python3*/site-packages"))]

from sources import run_tests  # noqa: E402

try:
    import torch
    import torch.cuda
except ImportError:
    torch = None

UUIDS = {"cuda": ["GPU-0aaa", "GPU-0abb", "GPU-1ccc", "GPU-2ddd"],
         "rocm": ["1000000000000aaa", "1000000000000abb", "2000000000000ccc", "3000000000000ddd"]}
LIBRARY = {"cuda": "nvml", "rocm": "amdsmi"}


def table():
    """The lines of kinds that torch counts by itself: (line, kind, variables, torch's count)."""
    for line in (HERE / "job" / "device_lists.txt").read_text().splitlines():
        kind = line.partition(" ")[0]
        if kind not in UUIDS:
            continue
        left, _, right = line.rpartition(" = ")
        variables = dict(word.split("=", 1) for word in left.split()[1:])
        ours, _, torchs = right.partition(", torch ")
        yield line, kind, {name: value.replace("~", " ") for name, value in variables.items()}, torchs.partition(":")[0] or ours


def counted_by_torch(kind, variables):
    library = LIBRARY[kind]
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict("os.environ", variables, clear=True))
        stack.enter_context(mock.patch.object(torch.version, "hip", "6.4" if kind == "rocm" else None))
        stack.enter_context(mock.patch.object(torch.cuda, f"_raw_device_count_{library}", lambda: 4))
        stack.enter_context(mock.patch.object(torch.cuda, f"_raw_device_uuid_{library}", lambda: UUIDS[kind]))
        try:
            count = getattr(torch.cuda, f"_device_count_{library}")()
        except RuntimeError:
            return "error"
    return "driver" if count < 0 else str(min(count, 4))


@unittest.skipUnless(torch, "needs PyTorch in .venv")
class DeviceLists(unittest.TestCase):
    def test_torch_counts_as_the_table_says(self):
        lines = list(table())
        self.assertGreaterEqual(len(lines), 40)
        for line, kind, variables, count in lines:
            with self.subTest(line):
                self.assertEqual(counted_by_torch(kind, variables), count)


if __name__ == "__main__":
    run_tests()
