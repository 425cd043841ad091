#!/usr/bin/env python3
"""The API reference: Doxygen makes it of the public headers, and warns of nothing. All that is
public has a docstring. Only the standard library, and doxygen."""

import importlib.util
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from sources import ROOT, run_tests

SPEC = importlib.util.spec_from_file_location("doxygen_filter", ROOT / "scripts" / "doxygen_filter.py")
doxygen_filter = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(doxygen_filter)

# Each is a line of a header and what Doxygen is to read.
HEADER = [
    ("// Bells.", "/// Bells."),
    ("//", "/// @code{.cpp}"),
    ("//   ring(1);", "///   ring(1);"),
    ("//", "///"),
    ("//   ring(2);", "///   ring(2);"),
    ("#pragma once", "/// @file"),
    ("", ""),
    ("namespace bells {", "namespace bells {"),
    ("", ""),
    ("// About the next two.", "// About the next two."),
    ("", ""),
    ("// A bell. For example:", "/// A bell. For example:"),
    ("//", "/// @code{.cpp}"),
    ("//   Bell bell;", "///   Bell bell;"),
    ("//", "/// @endcode"),
    ("// Any thread.", "/// Any thread."),
    ("class Bell {", "class Bell {"),
    (" public:", " public:"),
    ("  Bell() = default;", ""),
    ("  Bell(const Bell&) = delete;", ""),
    ("  Bell& operator=(Bell&&) noexcept = delete;", ""),
    ("  bool operator==(const Bell&) const = default;", ""),
    ("  ~Bell() = default;", ""),
    ("  // Makes a bell of lead.", "  /// Makes a bell of lead."),
    ("  Bell(Lead) = default;", "  Bell(Lead) = default;"),
    ("  virtual void ring() = 0;  // once", "  virtual void ring() = 0;  ///< once"),
    ("  int tone() const { return 1; }   // in Hz", "  int tone() const { return 1; }  ///< in Hz"),
    ("  Bell(int tone) {  // NOLINT: as a number is", "  Bell(int tone) {  // NOLINT: as a number is"),
    ("    // Not yet.", "    // Not yet."),
    ("    tone_ = tone;  // kept", "    tone_ = tone;  // kept"),
    ("  }", "  }"),
    ("  double high = 2, low = 1;  // in Hz",
     "  double high = 2; /**< in Hz */   double low = 1; /**< in Hz */"),
    ('  const char* at = "http://x";', '  const char* at = "http://x";'),
    ("};", "};"),
    ("", ""),
    ("}  // namespace bells", "}  // namespace bells"),
]
# The sample ends with the comment: no line is left for the mark.
OPEN_CODE = "///   ring(2); @endcode"


def reference(folder):
    """Runs Doxygen as docs/Doxyfile says, but into a folder of its own: (exit code, warnings)."""
    settings = (ROOT / "docs" / "Doxyfile").read_text() + f"\nOUTPUT_DIRECTORY = {folder}\n"
    done = subprocess.run(["doxygen", "-"], input=settings, cwd=ROOT, text=True, capture_output=True)
    return done.returncode, done.stdout + done.stderr


class ApiReference(unittest.TestCase):
    def setUp(self):
        if not shutil.which("doxygen"):
            self.skipTest("doxygen is not installed")

    def test_doxygen_warns_of_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            code, warnings = reference(folder)
            self.assertEqual((code, warnings), (0, ""), warnings)
            pages = {path.name for path in pathlib.Path(folder).rglob("*.html")}
        for page in ("classddprun_1_1DataParallel.html", "classddprun_1_1Collective.html",
                     "structddprun_1_1readers_1_1CsvTable.html", "process_8h.html"):
            self.assertIn(page, pages)


class DoxygenFilter(unittest.TestCase):
    def test_makes_documentation_of_comments_line_by_line(self):
        text = "".join(line + "\n" for line, _ in HEADER)
        expected = [OPEN_CODE if "ring(2)" in read else read for _, read in HEADER]
        self.assertEqual(doxygen_filter.filtered(text).splitlines(), expected)

    def test_leaves_code_without_comments_as_it_is(self):
        text = "template <typename T>\nstruct Row {\n  T* of(int i) {\n    return {i};\n  }\n};\n"
        self.assertEqual(doxygen_filter.filtered(text), text)

    def test_every_public_header_keeps_its_lines(self):
        headers = [*(ROOT / "worker" / "include" / "ddprun").glob("*.h"),
                   *(ROOT / "examples" / "readers" / "include" / "ddprun").glob("*.h")]
        self.assertGreater(len(headers), 20)
        for header in headers:
            text = header.read_text()
            made = doxygen_filter.filtered(text).splitlines()
            self.assertEqual(len(made), len(text.splitlines()), header)
            self.assertEqual(made.count("/// @file"), 1, header)


if __name__ == "__main__":
    run_tests()
