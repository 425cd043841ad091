"""ShardedParallel and PyTorch's fully_shard over Gloo train the same model: after twenty steps all
weights are alike. DDPRUN_BIN names the folder of the engine's program, DDPRUN the launcher.
"""
import os
import pathlib
import unittest

from python_parity_test import HERE, PYTHON, ends, main

TOLERANCE = 1e-6
MODES = ["sgd", "adam"]


def numbers(text):
    return [float(number) for number in text.split(",")]


class ShardedParity(unittest.TestCase):
    def assert_alike(self, ranks):
        theirs = ends(ranks, PYTHON, HERE / "sharded_trainer.py", *MODES)
        ours = ends(ranks, pathlib.Path(os.environ["DDPRUN_BIN"]) / "sharded_trainer", *MODES, *(f"{mode}_sent" for mode in MODES))
        self.assertEqual(len(ours), 2 * len(MODES))
        for mode, text in ours.items():
            found, expected = numbers(text), numbers(theirs[mode.removesuffix("_sent")])
            self.assertEqual(len(found), 20 * 32 + 32 + 32 * 32 + 32 + 32 * 10 + 10)
            self.assertEqual(len(found), len(expected))
            worst = max(abs(one - other) for one, other in zip(found, expected))
            print(f"{mode}, {ranks} ranks: largest difference from fully_shard {worst:.2e}")
            self.assertLessEqual(worst, TOLERANCE)
        self.assertNotEqual(theirs["sgd"], theirs["adam"])

    def test_two_ranks(self):
        self.assert_alike(2)

    def test_three_ranks(self):
        self.assert_alike(3)

    def test_four_ranks(self):
        self.assert_alike(4)


if __name__ == "__main__":
    main()
