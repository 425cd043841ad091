#!/usr/bin/env python3
"""docs/contract.md is held to the tests. Each case is there once and names tests that are there.
Every test whose name carries the number of a case is named in its row."""

import re
import unittest

from pages import REFERENCE, all_tests, missing, rows
from sources import ROOT, run_tests

PAGE = ROOT / "docs" / "contract.md"
NUMBERS = range(1, 65)
NOT_BUILT = "not built yet"
NUMBERED = re.compile(r"^(?:test_case_(\d+)_|\w+\.Case(\d+)(?!\d))")


def number_of(name):
    """The number of the case that a test's name carries; None for most."""
    found = NUMBERED.match(name)
    return int(found[1] or found[2]) if found else None


class ContractPage(unittest.TestCase):
    def setUp(self):
        self.page = PAGE.read_text()
        self.rows = rows(self.page, "Cases")
        self.tests = all_tests()

    def test_each_case_has_one_row(self):
        self.assertEqual([row[0] for row in self.rows], [str(number) for number in NUMBERS])
        for number, rule, tests in self.rows:
            self.assertRegex(rule, r"^(as torchrun|better): ", number)
            self.assertTrue(tests == NOT_BUILT or REFERENCE.match(tests), number)

    def test_every_test_that_is_named_is_there(self):
        self.assertEqual(missing(self.page, self.tests), [])

    def test_every_test_with_the_number_of_a_case_is_named_in_its_row(self):
        named = {int(number): set(REFERENCE.findall(tests)) for number, _, tests in self.rows}
        numbered = [(file, name) for file, name in self.tests if number_of(name) is not None]
        self.assertGreater(len(numbered), 80)
        lacking = [f"{file}:{name}" for file, name in sorted(numbered)
                   if (file, name) not in named.get(number_of(name), set())]
        self.assertEqual(lacking, [])

    def test_numbers_are_found_in_names(self):
        for name, number in (("test_case_07_switches_by_word", 7), ("Options.Case62CountWorkersByWord", 62),
                             ("Options.Case5LetTheCommandLineBeatThePetVariable", 5), ("test_quiet", None),
                             ("Cases.Are2", None), ("test_cases_07", None)):
            self.assertEqual(number_of(name), number, name)


if __name__ == "__main__":
    run_tests()
