#!/usr/bin/env python3
"""scripts/tidy: it finds a breach, and knows which files have changed."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

from sources import ROOT, run_tests

LOADER = importlib.machinery.SourceFileLoader("tidy", str(ROOT / "scripts" / "tidy"))
tidy = importlib.util.module_from_spec(importlib.util.spec_from_loader("tidy", LOADER))
sys.modules["tidy"] = tidy  # dataclasses look there
LOADER.exec_module(tidy)

BREACH = "int ThisIsNoNameOfAFunction() { return 0; }\n"


class Findings(unittest.TestCase):
    def setUp(self):
        self.tool = tidy.find_tool()
        if not self.tool:
            self.skipTest(f"clang-tidy {tidy.VERSION} is not installed")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check(self, **texts):
        """The findings in files of these names and texts, by name. They are one batch."""
        (self.folder / "base").mkdir()  # .clang-tidy looks at files of rooms
        paths = [self.folder / "base" / f"{name}.cc" for name in texts]
        for path, text in zip(paths, texts.values()):
            path.write_text(text)
        (self.folder / "together").mkdir()
        checker = tidy.Checker(self.tool, str(self.folder / "together"))
        batch = tidy.Batch(tuple(map(str, paths)), ("-std=c++20",))
        return {pathlib.Path(name).stem: list(outcome.findings)
                for outcome in checker.check(batch) for name in outcome.batch.files}

    def test_a_breach_is_found(self):
        found = self.check(breach=BREACH)["breach"]
        self.assertEqual(len(found), 1)
        self.assertRegex(found[0], r"breach\.cc:1:5: .*\[readability-identifier-naming")

    def test_a_breach_in_one_of_several_files_is_found(self):
        found = self.check(good="int good() { return 0; }\n", breach=BREACH)["breach"]
        self.assertEqual(len(found), 1)
        self.assertRegex(found[0], r"breach\.cc:1:5: ")

    def test_files_that_do_not_compile_as_one_are_checked_in_halves(self):
        text = "int same_name() { return 0; }\n"
        found = self.check(one=text, breach=text + BREACH)
        self.assertEqual([len(found["one"]), len(found["breach"])], [0, 1])

    def test_a_file_that_does_not_compile_is_no_clean_one(self):
        self.assertIn(tidy.NOT_COMPILED, self.check(broken="int x = ;\n")["broken"][0])

    def test_a_planted_breach_fails_the_command(self):
        (self.folder / "breach.cc").write_text(BREACH)
        done = subprocess.run([sys.executable, "-B", LOADER.path, str(self.folder / "breach.cc")],
                              capture_output=True, text=True)
        self.assertIn("1 findings", done.stdout, done.stderr)
        self.assertEqual(done.returncode, 1)


class CleanFiles(unittest.TestCase):
    def clean(self, *places):
        batch = tidy.Batch(("base/one.cc", "base/two.cc"), ())
        outcome = tidy.Outcome(batch, {f"{place}:1:2: error: x [y]": "" for place in places})
        return outcome.clean_files({"base/one.cc": ["base/one.h"]})

    def test_all_are_clean_without_a_finding(self):
        self.assertEqual(self.clean(), ["base/one.cc", "base/two.cc"])

    def test_a_finding_counts_against_its_file_and_in_its_header(self):
        self.assertEqual(self.clean("base/one.cc"), ["base/two.cc"])
        self.assertEqual(self.clean("base/one.h"), ["base/two.cc"])

    def test_a_finding_elsewhere_counts_against_all(self):
        self.assertEqual(self.clean("base/other.h"), [])


class Keys(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("base/one.h", "")
        self.write("base/one.cc", '#include "base/one.h"\n')
        self.write("base/alone.h", "")
        self.write("base/user.cc", '#include "base/alone.h"\n#include "base/one.h"\n')
        self.write("base/user_too.cc", '#include "base/alone.h"\n')

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def keys(self, configuration=b""):
        assigned = tidy.assign_headers(self.root, tidy.list_files(self.root, ".cc"))
        return tidy.make_keys(self.root, assigned, configuration)

    def changed(self, name):
        """The files whose keys change with a text."""
        before = self.keys()
        self.write(name, (self.root / name).read_text() + "int changed;\n")
        after = self.keys()
        return [name for name in after if after[name] != before[name]]

    def test_a_text_changes_the_key_of_its_file(self):
        self.assertEqual(self.changed("base/user.cc"), ["base/user.cc"])

    def test_a_header_changes_the_key_of_one_file(self):
        self.assertEqual(self.changed("base/one.h"), ["base/one.cc"])
        self.assertEqual(self.changed("base/alone.h"), ["base/user.cc"])

    def test_a_public_header_belongs_to_a_file_that_includes_it(self):
        self.write("worker/include/ddprun/face.h", "")
        self.write("worker/room/face.cc", "#include <ddprun/face.h>\n#include <vector>\n")
        self.assertEqual(self.changed("worker/include/ddprun/face.h"), ["worker/room/face.cc"])

    def test_the_words_of_comments_change_no_key(self):
        self.write("base/one.cc", "// One line.\nint a;  // more\n")
        before = self.keys()
        self.write("base/one.cc", "  // Two\n  // lines.\nint a;  // more\n")
        self.assertEqual(self.keys(), before)

    def test_code_and_nolints_change_the_key(self):
        for text in ("int a;\n", "// One line.\nint a;\n", "// NOLINTNEXTLINE(x): y\nint a;\n",
                     "int a;  // NOLINT(x): y\n", "// One line.\n\n// Another.\nint a;\n"):
            before = self.keys()
            self.write("base/one.cc", text)
            self.assertNotEqual(self.keys()["base/one.cc"], before["base/one.cc"], text)

    def test_the_rules_change_all_keys(self):
        before, after = self.keys(), self.keys(b"Checks: '*'")
        self.assertEqual([name for name in after if after[name] == before[name]], [])

    def test_each_header_that_is_included_is_checked_with_one_file(self):
        sources = tidy.list_files(ROOT, ".cc")
        includes = {name: tidy.find_includes(ROOT, name)
                    for name in sources + tidy.list_files(ROOT, ".h")}
        included = {header for name in sources for header in tidy.reach_headers(name, includes)}
        assigned = tidy.assign_headers(ROOT, sources)
        headers = [name for names in assigned.values() for name in names]
        self.assertEqual(sorted(headers), sorted(included & set(tidy.list_files(ROOT, ".h"))))

    def test_the_ledger_may_hold_two_keys_of_a_file_after_a_merge(self):
        path = self.root / "ledger.txt"
        path.write_text("12 base/one.cc\n34 base/one.cc\n")
        self.assertEqual(tidy.read_ledger(path), {("12", "base/one.cc"), ("34", "base/one.cc")})
        tidy.write_ledger(path, [("56", "base/user.cc"), ("34", "base/one.cc")])
        self.assertEqual(path.read_text(), "34 base/one.cc\n56 base/user.cc\n")


if __name__ == "__main__":
    run_tests()
