#!/usr/bin/env python3
"""docs/torchrun.md is held to what it speaks of: every flag has a row, every row of a flag or
variable a test, and every test is there."""

import re
import sys
import unittest

from sources import ROOT, run_tests

sys.path.insert(0, str(ROOT / "tests" / "contract"))

from cases import CASES  # noqa: E402

PAGE = ROOT / "docs" / "torchrun.md"
REFERENCE = re.compile(r"`([a-z_0-9]+):([^`]+)`")


def flags():
    """Names in the flag table, in its order."""
    return re.findall(
        r'Flag\{FlagId::k\w+, "([a-z-]+)"', (ROOT / "launcher" / "flag_table.cc").read_text()
    )


def rows(page, heading):
    """The tables' rows below a heading, each a list of cells."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[1:]]


def is_there(file, name):
    """Whether `name` is a test of `file`, or a line of the comparison with torchrun."""
    if file == "contract":
        return name in {case.name for case in CASES}
    texts = [
        path.read_text()
        for path in (ROOT / "tests").rglob(f"{file}.*")
        if path.suffix in (".cc", ".py")
    ]
    if "." in name:
        suite, _, test = name.partition(".")
        return any(re.search(rf"TEST(_F|_P)?\(\s*{suite},\s*{test}\)", text) for text in texts)
    return any(f"def {name}(" in text for text in texts)


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
        named = REFERENCE.findall(self.page)
        self.assertGreater(len(named), 100)
        self.assertEqual([f"{file}:{name}" for file, name in named if not is_there(file, name)], [])

    def test_a_test_that_is_not_there_would_be_found(self):
        self.assertTrue(is_there("contract", "plain"))
        self.assertFalse(is_there("contract", "plainer"))
        self.assertTrue(is_there("options_test", "Options.HaveTorchrunsDefaults"))
        self.assertFalse(is_there("options_test", "Options.HaveNone"))
        self.assertFalse(is_there("jobs_test", "test_nothing"))


if __name__ == "__main__":
    run_tests()
