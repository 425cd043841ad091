"""LocalSgd and PyTorch's post-local SGD over Gloo train the same model. After twenty steps the
weights of each rank have the same bits, and so has their average. DDPRUN_BIN names the folder of
the engine's program, DDPRUN the launcher.
"""
import os
import pathlib
import unittest

from python_parity_test import HERE, PYTHON, ends, main

MODES = ["periodic", "host", "levels", "norm"]


class LocalSgdParity(unittest.TestCase):
    def assert_equal_ends(self, ranks):
        theirs = ends(ranks, PYTHON, HERE / "local_sgd_trainer.py", *MODES)
        ours = ends(ranks, pathlib.Path(os.environ["DDPRUN_BIN"]) / "local_sgd_trainer", *MODES)
        self.assertEqual(sorted(ours), sorted(MODES))
        self.assertEqual(ours, theirs)
        self.assertEqual(len(set(ours.values())), len(MODES), "modes that end alike tell nothing")
        *of_ranks, averaged = ours["periodic"].split(":")
        self.assertEqual(len({*of_ranks, averaged}), ranks + 1, "the ranks had parted at the end")

    def test_two_ranks(self):
        self.assert_equal_ends(2)

    def test_three_ranks(self):
        self.assert_equal_ends(3)

    def test_four_ranks(self):
        self.assert_equal_ends(4)


if __name__ == "__main__":
    main()
