"""A transformer with split layers has the bits of PyTorch's parallelize_module() over Gloo. They
are those of the first loss, of all gradients, and of losses and weights after six steps. DDPRUN_BIN
names the folder of the engine's program, DDPRUN the launcher.
"""
import os
import pathlib
import unittest

from python_parity_test import HERE, PYTHON, ends, main

MODES = ["tensor", "sequence"]


class TensorParallelParity(unittest.TestCase):
    def assert_equal_ends(self, ranks, *modes):
        theirs = ends(ranks, PYTHON, HERE / "tensor_parallel_trainer.py", *modes)
        ours = ends(ranks, pathlib.Path(os.environ["DDPRUN_BIN"]) / "tensor_parallel_trainer", *modes)
        self.assertEqual(sorted(ours), sorted(modes))
        self.assertEqual(ours, theirs)
        self.assertEqual(len({end.split(":")[2] for end in ours.values()}), len(modes), "modes that end alike tell nothing")

    def test_two_ranks(self):
        self.assert_equal_ends(2, *MODES)

    def test_four_ranks(self):
        self.assert_equal_ends(4, *MODES, "mesh")  # 2 x 2, with DataParallel along the other axis


if __name__ == "__main__":
    main()
