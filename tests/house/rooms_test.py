#!/usr/bin/env python3
"""The habits that a machine can hold. Every file has an owner and is built, and every header says
what it is. Files that are long are named, and fail nothing: a limit would cut one thing into two
files."""

import ast
import unittest

from sources import ROOMS, ROOT, cpp_files, name, room_files, run_tests

LONG_FILE_LINES = 500  # the reader of a change asks whether such a file is one thing


class Rooms(unittest.TestCase):
    def test_every_file_is_in_a_room(self):
        """A folder that is not in the list of rooms would be held to nothing."""
        top_rooms = sorted({"examples/readers" if room.startswith("examples/") else room.split("/")[0] for room in ROOMS})
        in_rooms = {path for room in ROOMS for path in room_files(room)}
        self.assertEqual([name(path) for path in cpp_files(*top_rooms) if path not in in_rooms], [])

    def test_every_source_is_built_by_its_room(self):
        """A .cc that no CMakeLists.txt names compiles nowhere and rots."""
        for room in ROOMS:
            sources = [path.name for path in room_files(room) if path.suffix == ".cc"]
            recipe = (ROOT / room / "CMakeLists.txt").read_text() if sources else ""
            for source in sources:
                self.assertIn(source, recipe, room)

    def test_every_test_source_is_built(self):
        for path in cpp_files("tests"):
            if path.suffix == ".cc":
                recipes = [folder / "CMakeLists.txt" for folder in path.parents if (folder / "CMakeLists.txt").exists()]
                self.assertIn(path.name, recipes[0].read_text(), name(path))

    def test_every_python_test_is_run(self):
        for path in sorted((ROOT / "tests").rglob("*_test.py")):
            recipe = (path.parent / "CMakeLists.txt").read_text()
            call = f"({path.stem.removesuffix('_test')})"  # of a function that adds the ending
            self.assertTrue(path.name in recipe or call in recipe, name(path))

    def test_no_test_class_hides_a_method_of_unittest(self):
        """With a fail() of its own most assertions would fail nothing."""
        own = {"setUp", "tearDown", "setUpClass", "tearDownClass"}
        hidden = [f"{name(path)}: {node.name}.{part.name}" for path in sorted((ROOT / "tests").rglob("*.py"))
                  for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
                  for part in node.body if isinstance(part, ast.FunctionDef)
                  and hasattr(unittest.TestCase, part.name) and not part.name.startswith("__") and part.name not in own]
        self.assertEqual(hidden, [])

    def test_headers_open_with_what_they_are(self):
        """A comment before anything else, then the guard."""
        for room in ROOMS:
            for path in room_files(room):
                if path.suffix == ".h":
                    lines = path.read_text().splitlines()
                    self.assertTrue(lines[0].startswith("// "), name(path))
                    self.assertIn("#pragma once", lines, name(path))


def name_long_files():
    for path in [path for room in ROOMS for path in room_files(room)] + cpp_files("examples", "bench"):
        lines = len(path.read_text().splitlines())
        if lines > LONG_FILE_LINES:
            print(f"{name(path)} has {lines} lines: is it one thing?")


if __name__ == "__main__":
    name_long_files()
    run_tests()
