#!/usr/bin/env python3
"""Prints the pins of a requirements file (NAME==VERSION lines) that the Python running this lacks.

One a line. Exit code 0 only if it lacks none. A package counts when its RECORD is there, which pip
writes last.
"""

import importlib.metadata
import sys


def has(pin):
    name, _, version = pin.partition("==")
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return found.version == version and found.files is not None


def main(path):
    with open(path, encoding="utf-8") as file:
        pins = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    lacking = [pin for pin in pins if not has(pin)]
    print("\n".join(lacking))
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
