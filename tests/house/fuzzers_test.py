#!/usr/bin/env python3
"""Every fuzzer has inputs to begin with, and a bug that it was seen to find; the inputs stay
small."""

import re
import subprocess
import sys
import unittest

from sources import ROOT, name, run_tests

FUZZ = ROOT / "tests" / "fuzz"
MAX_CORPUS_BYTES = 200 << 10
MAX_INPUT_BYTES = 4096  # longer ones are cut by tests/fuzz/run


def targets():
    return re.findall(r"^ddprun_fuzzer\((\w+)\.cc", (FUZZ / "CMakeLists.txt").read_text(), re.M)


class Fuzzers(unittest.TestCase):
    def test_each_has_inputs_and_no_inputs_are_without_one(self):
        self.assertGreater(len(targets()), 5)
        self.assertEqual(sorted(folder.name for folder in (FUZZ / "corpus").iterdir()), sorted(targets()))
        for target in targets():
            self.assertGreater(len(list((FUZZ / "corpus" / target).iterdir())), 5, target)

    def test_inputs_are_small(self):
        sizes = {name(path): path.stat().st_size for path in (FUZZ / "corpus").rglob("*") if path.is_file()}
        self.assertLess(sum(sizes.values()), MAX_CORPUS_BYTES)
        self.assertEqual({path: size for path, size in sizes.items() if size > MAX_INPUT_BYTES}, {})

    def test_each_has_a_planted_bug(self):
        planted = set(re.findall(r'^    \("(\w+)", "', (FUZZ / "planted_bugs").read_text(), re.M))
        self.assertEqual(planted, set(targets()))

    def test_each_script_says_what_it_does(self):
        """With --help it does nothing else."""
        for script in ("make_corpus", "planted_bugs", "run"):
            told = subprocess.run([sys.executable, "-B", FUZZ / script, "--help"], capture_output=True, text=True, timeout=60)
            self.assertEqual((told.returncode, told.stderr), (0, ""), script)
            self.assertTrue(told.stdout.startswith(f"usage: {script}"), told.stdout)

    def test_words_belong_to_a_target(self):
        self.assertLessEqual({path.name for path in (FUZZ / "dictionaries").iterdir()}, set(targets()))


if __name__ == "__main__":
    run_tests()
