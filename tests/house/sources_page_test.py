"""docs/sources.md: no row is empty, and each link and each program leads somewhere. Only the
standard library."""
import re
import unittest

from sources import ROOT, run_tests

PAGE = ROOT / "docs" / "sources.md"


class SourcesPage(unittest.TestCase):
    def test_no_row_is_empty_and_all_lead_somewhere(self):
        rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
        self.assertGreaterEqual(len(rows), 20)
        for source, *places in rows:
            self.assertEqual(len(places), 1, source)
            self.assertTrue(source.strip() and places[0].strip(), source)
            named = [PAGE.parent / link for link in re.findall(r"\]\(([^)]+)\)", places[0])]
            named += [ROOT / program for program in re.findall(r"`((?:bench|tests)/[^`]+)`", places[0])]
            self.assertTrue(named, f"{source}: names nothing")
            for path in named:
                self.assertTrue(path.exists(), f"{source}: {path} is not there")


if __name__ == "__main__":
    run_tests()
