#!/usr/bin/env python3
"""The habits that a machine can hold: every file has an owner, no file grows without end, every header says what it is."""

import unittest

from sources import ROOMS, ROOT, cpp_files, name, run_tests

MAX_FILE_LINES = 400  # a file is read in one sitting, or it is two files


class Rooms(unittest.TestCase):
    def test_every_source_is_built_by_its_room(self):
        """A .cc that no CMakeLists.txt names compiles nowhere and rots."""
        for room in ROOMS:
            recipe = (ROOT / room / "CMakeLists.txt").read_text()
            for path in cpp_files(room):
                if path.suffix == ".cc":
                    self.assertIn(str(path.relative_to(ROOT / room)), recipe, room)

    def test_every_test_source_is_built(self):
        for path in cpp_files("tests"):
            if path.suffix == ".cc":
                self.assertIn(path.name, (path.parent / "CMakeLists.txt").read_text(), name(path))

    def test_files_stay_short(self):
        long_files = [name(path) for path in cpp_files(*ROOMS, "examples", "bench")
                      if len(path.read_text().splitlines()) > MAX_FILE_LINES]
        self.assertEqual(long_files, [])

    def test_headers_open_with_what_they_are(self):
        """A comment before anything else, then the guard."""
        for path in cpp_files(*ROOMS):
            if path.suffix == ".h":
                lines = path.read_text().splitlines()
                self.assertTrue(lines[0].startswith("// "), name(path))
                self.assertIn("#pragma once", lines, name(path))


if __name__ == "__main__":
    run_tests()
