#!/usr/bin/env python3
"""Names that docs/vocabulary.md has given up are nowhere any more."""

import re
import subprocess
import unittest

from sources import ROOT, run_tests

PAGE = ROOT / "docs" / "vocabulary.md"


def vocabulary():
    """The table's rows: [word, meaning, names given up]."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows]


def retired():
    """Folder -> names given up in it; "": everywhere."""
    names = {}
    for row in vocabulary():
        for part in row[2].split(";"):
            folder = re.match(r"\s*in ([\w/]+/):", part)
            names.setdefault(folder[1] if folder else "", []).extend(re.findall(r"`(\w+)`", part))
    return names


def is_in(path, folder):
    """The tests of a folder count as a part of it."""
    return path.startswith((folder, f"tests/{folder}"))


def tracked_texts():
    """Path -> text of every file of the project. The vocabulary and the changelog, which tell users
    of names of before, are left out."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    texts = {}
    for name in names:
        try:
            texts[name] = (ROOT / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
    for page in str(PAGE.relative_to(ROOT)), "CHANGELOG.md":
        del texts[page]
    return texts


class Vocabulary(unittest.TestCase):
    def test_every_row_has_a_word_and_its_meaning(self):
        rows = vocabulary()
        self.assertGreater(len(rows), 20)
        for row in rows:
            self.assertEqual(len(row), 3, row)
            self.assertTrue(row[0] and row[1], row)
        words = [row[0] for row in rows]
        self.assertEqual(len(words), len(set(words)), "one row a word")

    def test_no_name_that_was_given_up_is_left(self):
        texts = tracked_texts()
        self.assertGreater(len(retired()[""]), 20)
        for folder, names in retired().items():
            pattern = re.compile(r"(?<!\w)(" + "|".join(names) + r")(?!\w)")
            held = {path: text for path, text in texts.items() if not folder or is_in(path, folder)}
            self.assertTrue(held, folder)
            found = [f"{path}: {match}" for path, text in held.items() for match in pattern.findall(text)]
            self.assertEqual(found, [], folder)


if __name__ == "__main__":
    run_tests()
