"""Reads what a program of GoogleTest prints. Pure."""

import re
import typing

BEGUN = re.compile(r"^\[ RUN      \] (\S+)", re.MULTILINE)
SKIPPED = re.compile(r"^.*: Skipped\n(.*)\n(?:.*\n)*?\[  SKIPPED \] (\S+) \(", re.MULTILINE)
FAILED = re.compile(r"^\[  FAILED  \] (\S+?)(?:, where .*)? \(\d+ ms\)", re.MULTILINE)
PASSED = re.compile(r"^\[  PASSED  \] (\d+) tests?\.", re.MULTILINE)


class Tests(typing.NamedTuple):
    passed: int
    failed: list  # names
    skipped: list  # (name, reason)
    is_whole: bool  # the program came to its end
    last: str  # the test that began last


def read(text):
    passed = PASSED.search(text)
    begun = BEGUN.findall(text)
    skipped = [(name, reason.strip()) for reason, name in SKIPPED.findall(text)]
    return Tests(int(passed[1]) if passed else 0, FAILED.findall(text), skipped,
                 passed is not None, begun[-1] if begun else "")
