#!/usr/bin/env python3
"""arm64, if its compiler and qemu are at hand. Decisions are as they are here, and sums have the
same bits. `scripts/arm64 test` has jobs, and more tests."""

import sys
import unittest

from support import BUILD, ROOT, built, run_tests, tool

sys.path.insert(0, str(ROOT / "scripts"))

from distribution import build, cores, elf  # noqa: E402


class Arm64(unittest.TestCase):
    def test_decisions_and_sums_are_those_of_x86(self):
        for program in build.CROSS_TOOLS:
            tool(program)
        built(cores.GTEST)
        program = cores.make(BUILD, BUILD / "arm64-cores")
        self.assertEqual(elf.machine(elf.content(program)).debian, "arm64")
        # Left out: sums of millions, which qemu adds for half a minute.
        said = cores.try_all(program, "--gtest_filter=-Ranks/*")
        self.assertRegex(said, r"PASSED  \] \d{3,} tests")


if __name__ == "__main__":
    run_tests()
