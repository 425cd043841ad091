#!/usr/bin/env python3
"""docs/torchrun.md is held to its subjects. Every flag has a row, every row of a flag or variable a
test, and every test is there."""

import re
import unittest

from pages import REFERENCE, all_tests, missing, rows
from sources import ROOT, run_tests

PAGE = ROOT / "docs" / "torchrun.md"


def flags():
    """Names in the flag table, in its order."""
    return re.findall(
        r'Flag\{FlagId::k\w+, "([a-z-]+)"', (ROOT / "launcher/options/flag_table.cc").read_text()
    )


class TorchrunPage(unittest.TestCase):
    def setUp(self):
        self.page = PAGE.read_text()

    def test_every_flag_has_a_row(self):
        known = flags()
        self.assertGreater(len(known), 40)
        shown = [
            name
            for heading in ("torchrun's flags", "ddprun's own flags")
            for row in rows(self.page, heading)
            for name in re.findall(r"--([a-z-]+)", row[0])
        ]
        self.assertEqual(sorted(shown), sorted(known))

    def test_every_row_names_a_test(self):
        for heading in (
            "torchrun's flags",
            "ddprun's own flags",
            "Variables that a worker is given",
            "Variables that the launcher reads",
            "Arguments and programs",
            "Macros of the line prefix",
            "Failures",
        ):
            found = rows(self.page, heading)
            self.assertGreater(len(found), 3, heading)
            for row in found:
                self.assertRegex(row[-1], REFERENCE, row[0])

    def test_every_test_that_is_named_is_there(self):
        self.assertGreater(len(REFERENCE.findall(self.page)), 100)
        self.assertEqual(missing(self.page, all_tests()), [])

    def test_a_test_that_is_not_there_would_be_found(self):
        there = "`contract:plain` `options_test:Options.HaveTorchrunsDefaults` `program_test:test_case_01_one_worker`"
        self.assertEqual(missing(there, all_tests()), [])
        nowhere = "`contract:plainer` `options_test:Options.HaveNone` `program_test:test_nothing`"
        self.assertEqual(len(missing(nowhere, all_tests())), 3)


if __name__ == "__main__":
    run_tests()
