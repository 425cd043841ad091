"""The operations of the engine and those of torch.distributed with Gloo give the same numbers, for
tensors of each type. DDPRUN_BIN names the folder of the engine's program, DDPRUN the launcher.
"""
import os
import pathlib
import unittest

from python_parity_test import HERE, PYTHON, ends, main

FLOATS, INTEGERS, COMPLEX = 4, 4, 2
MOVED = 6  # gather, broadcast, receive, uneven and even all-to-all, gather into one tensor
README = 4  # loss, largest, all, half
# Beside these sum, min, max, group, scatter; average for floats. For complex ones sum, average,
# group; bool is moved only; the mean.
LINES_A_RANK = FLOATS * (MOVED + README + 6) + INTEGERS * (MOVED + README + 5) + COMPLEX * (MOVED + README + 3) + MOVED + 1
# The lines of the header's sample, which collectives_program.cc has for each type.
CALLS = ("tensors.all_reduce(largest, Reduction::kMax)", "const auto all = tensors.all_gather(",
         "const auto half = ranks.split(ranks.rank() % 2, 0);", "ranks.monitored_barrier(std::chrono::seconds(60));")


class CollectivesParity(unittest.TestCase):
    def assert_equal_numbers(self, ranks):
        ours = ends(ranks, pathlib.Path(os.environ["DDPRUN_BIN"]) / "collectives_program")
        theirs = ends(ranks, PYTHON, HERE / "collectives_program.py")
        self.assertEqual(len(theirs), ranks * LINES_A_RANK)
        for name, numbers in theirs.items():
            with self.subTest(name=name):
                self.assertEqual([float(number) for number in ours.pop(name).split(",")],
                                 [float(number) for number in numbers.split(",")])
        self.assertEqual(ours, {})

    def test_the_lines_are_those_of_the_sample(self):
        for file in HERE.parents[2] / "worker" / "include" / "ddprun" / "tensor_collective.h", HERE / "collectives_program.cc":
            for call in CALLS:
                self.assertEqual(file.read_text().count(call), 1, f"{file.name}: {call}")

    def test_two_ranks(self):
        self.assert_equal_numbers(2)

    def test_three_ranks(self):
        self.assert_equal_numbers(3)

    def test_four_ranks(self):
        self.assert_equal_numbers(4)


if __name__ == "__main__":
    main()
