"""docs/trust.md's table of threats is held to the tests: it names attackers, assets, and tests that
are there. Only the standard library."""

import unittest

from pages import all_tests, missing, rows
from sources import ROOT, run_tests

PAGE = ROOT / "docs" / "trust.md"
ATTACKERS = {"network", "user", "same user", "a worker", "node", "in between", "taken for the host"}


class TrustPage(unittest.TestCase):
    def setUp(self):
        self.page = PAGE.read_text()
        self.rows = rows(self.page, "Threats")

    def test_each_test_that_it_names_is_there(self):
        table = self.page.partition("\n## Threats\n")[2]
        self.assertEqual(missing(table, all_tests()), [])

    def test_each_attacker_has_a_row_and_what_holds_has_a_test(self):
        self.assertEqual({row[0] for row in self.rows if "---" not in row[0]}, ATTACKERS)
        for row in self.rows:
            self.assertEqual(len(row), 5, row)
            self.assertTrue(row[2] or row[3], row)

    def test_how_to_report_is_said(self):
        self.assertIn("docs/trust.md", (ROOT / "SECURITY.md").read_text())


if __name__ == "__main__":
    run_tests()
