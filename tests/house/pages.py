"""Pages of docs/ that name tests: their tables, and the tests that there are. Only the standard
library.

A test is named as `file:test_name`, of C++ as `file:Suite.Name`, a line of the comparison with
torchrun as `contract:line name`.
"""

import re
import sys

from sources import ROOT

sys.path.insert(0, str(ROOT / "tests" / "contract"))

from cases import CASES  # noqa: E402

REFERENCE = re.compile(r"`([a-z_0-9]+):([^`]+)`")
GOOGLE_TEST = re.compile(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)")
PYTHON_TEST = re.compile(r"^    def (test_\w+)\(", re.MULTILINE)


def rows(page, heading):
    """The tables' rows below a heading, each a list of cells."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[1:]]


def all_tests():
    """(file, name) of every test, as pages name them."""
    found = {("contract", case.name) for case in CASES}
    for path in (ROOT / "tests").rglob("*"):
        if path.suffix == ".cc":
            found |= {(path.stem, f"{suite}.{name}") for suite, name in GOOGLE_TEST.findall(path.read_text())}
        elif path.suffix == ".py":
            found |= {(path.stem, name) for name in PYTHON_TEST.findall(path.read_text())}
    return found


def missing(page, tests):
    """Returns the tests that the page names and that are not there, as the page has them."""
    return [f"{file}:{name}" for file, name in REFERENCE.findall(page) if (file, name) not in tests]
