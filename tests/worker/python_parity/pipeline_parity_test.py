"""A pipeline has the bits of PyTorch's ScheduleGPipe and Schedule1F1B over Gloo. They are those of
all losses, of the first gradients, and of the weights after five steps. DDPRUN_BIN names the folder
of the engine's program, DDPRUN the launcher.
"""
import os
import pathlib
import unittest

from python_parity_test import HERE, PYTHON, ends, main

# Schedules, and micro-batches of a batch. With "data" the 4 ranks are two pipelines of two stages,
# which DistributedDataParallel trains.
MODES = ["gpipe-3", "1f1b-8", "gpipe-12", "1f1b-6", "gpipe-3-data", "1f1b-6-data"]


class PipelineParity(unittest.TestCase):
    def test_four_stages_and_two_beside_data_parallel(self):
        theirs = ends(4, PYTHON, HERE / "pipeline_trainer.py", *MODES)
        ours = ends(4, pathlib.Path(os.environ["DDPRUN_BIN"]) / "pipeline_trainer", *MODES)
        self.assertEqual(sorted(ours), sorted(MODES))
        self.assertEqual(ours, theirs)
        self.assertEqual(len(set(ours.values())), len(MODES), "modes that end alike tell nothing")


if __name__ == "__main__":
    main()
