"""Join and ZeroOptimizer end with the bits of PyTorch's, with Gloo. They are weights and buffers of
three ranks with 10, 13 and 7 batches. Others are weights after 50 steps of each optimizer. The
owners of 200 random lists are equal, too. DDPRUN_BIN names the folder of the engine's program,
DDPRUN the launcher.
"""
import os
import pathlib
import unittest

from python_parity_test import HERE, PYTHON, ends, main

OPTIMIZERS = ["sgd", "nesterov", "adam", "adam_decay", "amsgrad", "adamw"]
JOINED = ["join", "join_active", "join_unused", "join_active_unused", "join_hook", "join_adam"]
# Ours must end as Python's with one Adam of all parameters. Python's with its
# ZeroRedundancyOptimizer does not: see docs/join.md.
JOINED_ZERO = ["join_zero", "join_scatter"]


def ours(ranks, modes):
    return ends(ranks, pathlib.Path(os.environ["DDPRUN_BIN"]) / "join_zero_trainer", *modes)


def theirs(ranks, modes):
    return ends(ranks, PYTHON, HERE / "join_zero_trainer.py", *modes)


class JoinParity(unittest.TestCase):
    def test_three_ranks(self):
        found, expected = ours(3, JOINED + JOINED_ZERO), theirs(3, JOINED + ["join_zero"])
        of_python_zero = expected.pop("join_zero")
        for mode in JOINED_ZERO:
            self.assertEqual(found.pop(mode), expected["join_adam"], mode)
        self.assertEqual(found, expected)
        self.assertEqual(len(set(found.values())), len(found), "modes that end alike tell nothing")
        self.assertNotEqual(of_python_zero, expected["join_adam"], "PyTorch has mended it: docs/join.md says that it has not")


class ZeroParity(unittest.TestCase):
    def assert_equal_ends(self, ranks):
        expected = theirs(ranks, [f"{kind}_zero" for kind in OPTIMIZERS] + ["partition"])
        found = ours(ranks, [f"{kind}_{how}" for kind in OPTIMIZERS for how in ("zero", "scatter", "whole")] + ["partition"])
        self.assertEqual(found.pop("partition"), expected.pop("partition"))
        for mode, end in found.items():
            self.assertEqual(end, expected[mode.rsplit("_", 1)[0] + "_zero"], mode)
        self.assertEqual(len(found), 3 * len(OPTIMIZERS))
        self.assertEqual(len(set(expected.values())), len(OPTIMIZERS))

    def test_two_ranks(self):
        self.assert_equal_ends(2)

    def test_three_ranks(self):
        self.assert_equal_ends(3)

    def test_four_ranks(self):
        self.assert_equal_ends(4)


if __name__ == "__main__":
    main()
