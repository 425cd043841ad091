#!/usr/bin/env python3
"""docs/support.md and the command that writes its table of torch's releases. Nothing is installed
here, and no registry is asked."""

import runpy
import subprocess
import sys
import unittest

from sources import ROOT, run_tests

sys.path.insert(0, str(ROOT / "scripts"))

from torch_table import BEGIN, END, lags, minor, read_rows, write_rows  # noqa: E402

COMMAND = ROOT / "scripts" / "torch_matrix"
GOOD = ("same", "passes")
# The cells that may be "not run". tests/contract and tests/trainers run with the engine's release.
NOT_RUN = dict.fromkeys(((2, 9), (2, 12), (2, 14)), {"under other launchers"})
EMPTY = f"# A page\n\n{BEGIN}\n{END}\n\nMore.\n"
ROWS = {(2, 9): {"torch": "2.9.1", "DDP": "same"}, (2, 11): {"torch": "2.11.0", "DDP": "same", "store": "passes"}}


class Table(unittest.TestCase):
    def test_what_is_written_is_read(self):
        page = write_rows(EMPTY, ROWS, ["DDP", "store"])
        self.assertEqual(page, f"# A page\n\n{BEGIN}\n\n| checked with torch | 2.9.1 | 2.11.0 |\n|---|---|---|\n"
                               f"| DDP | same | same |\n| store | not run | passes |\n\n{END}\n\nMore.\n")
        self.assertEqual(read_rows(page), {**ROWS, (2, 9): {**ROWS[2, 9], "store": "not run"}})
        self.assertEqual(write_rows(page, read_rows(page), ["DDP", "store"]), page)

    def test_a_page_without_the_marks_is_refused(self):
        with self.assertRaisesRegex(ValueError, "expected the lines <!-- "):
            read_rows("# A page\n")

    def test_a_newer_minor_in_the_registry_is_named(self):
        self.assertEqual(lags(ROWS, ["2.8.0", "2.11.3", "2.12.0", "2.12.1", "2.13.0", "3.0.0rc1"]), ["2.12", "2.13"])
        self.assertEqual(lags(ROWS, ["2.10.0", "2.11.1"]), [])

    def test_a_release_has_two_numbers_at_least(self):
        self.assertEqual([minor(text) for text in ("2.15", "2.15.0+cu132")], [(2, 15), (2, 15)])
        with self.assertRaisesRegex(ValueError, "latest: expected a release"):
            minor("latest")


class SupportPage(unittest.TestCase):
    def test_no_release_differs(self):
        """A check that was not run is one of those that may be. The command's are all there."""
        rows = read_rows((ROOT / "docs" / "support.md").read_text())
        checks = runpy.run_path(str(COMMAND))["CHECKS"]
        self.assertGreater(len(rows), 1)
        for release, row in rows.items():
            self.assertEqual(set(row), {"torch", *checks})
            bad = {check: row[check] for check in checks if row[check] not in GOOD}
            self.assertLessEqual(bad.items(), dict.fromkeys(NOT_RUN.get(release, ()), "not run").items(), row["torch"])

    def test_each_line_that_a_check_names_is_there(self):
        sys.path.insert(0, str(ROOT / "tests" / "contract"))
        from cases import CASES

        names = [name for some in runpy.run_path(str(COMMAND))["CONTRACTS"].values() for name in some]
        self.assertEqual(set(names) - {case.name for case in CASES}, set())

    def test_the_engines_release_is_in_the_table(self):
        pins = (ROOT / "scripts" / "requirements.txt").read_text()
        engine = next(line.partition("==")[2] for line in pins.splitlines() if line.startswith("torch=="))
        self.assertIn(minor(engine), read_rows((ROOT / "docs" / "support.md").read_text()))

    def test_the_command_refuses_bad_input_in_one_line(self):
        for words, said in (
            ([], "expected a release of torch, such as 2.15, or --registry"),
            (["latest"], "latest: expected a release of torch, such as 2.15"),
            (["2.15", "--only=x y"], "--only=x y: expected a part of environment of workers, "),
            (["2.15", "--ddprun=/nowhere"], "--ddprun=/nowhere: expected a program"),
        ):
            done = subprocess.run([sys.executable, "-B", COMMAND, "--ddprun=/bin/true", *words], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"error: {said}", done.stderr.splitlines()[-1])


if __name__ == "__main__":
    run_tests()
