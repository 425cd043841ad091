"""A pipeline has the bits of PyTorch's ScheduleGPipe and Schedule1F1B over Gloo. They are those of
all losses, of the first gradients, and of the weights after five steps. DDPRUN_BIN names the folder
of the engine's program, DDPRUN the launcher.
"""
import os
import pathlib
import unittest

from python_parity_test import HERE, PYTHON, ends, main

# Schedules, and micro-batches of a batch. With "data" 4 ranks are 2 x 2.
MODES = ["gpipe-3", "1f1b-8", "gpipe-12", "1f1b-6"]


class PipelineParity(unittest.TestCase):
    def assert_equal_ends(self, ranks, *modes):
        theirs = ends(ranks, PYTHON, HERE / "pipeline_trainer.py", *modes)
        ours = ends(ranks, pathlib.Path(os.environ["DDPRUN_BIN"]) / "pipeline_trainer", *modes)
        self.assertEqual(sorted(ours), sorted(modes))
        self.assertEqual(ours, theirs)
        self.assertEqual(len(set(ours.values())), len(modes), "modes that end alike tell nothing")

    def test_two_stages(self):
        self.assert_equal_ends(2, *MODES)

    def test_four_stages_and_two_beside_data_parallel(self):
        self.assert_equal_ends(4, *MODES, "gpipe-3-data", "1f1b-6-data")


if __name__ == "__main__":
    main()
