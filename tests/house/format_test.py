#!/usr/bin/env python3
"""Every C++ file is as clang-format would write it, and no line of it is longer than 100 bytes.
clang-format breaks neither comments nor texts. Exit code 77 if clang-format is not installed."""

import shutil
import subprocess
import sys

from sources import ROOT, cpp_files

FOLDERS = ("base", "proto", "store", "rendezvous", "agent", "launcher", "daemon", "worker",
           "examples", "bench", "tests")
MOST_BYTES = 100


def wide_lines(name, text):
    return [f"{name}:{number}" for number, line in enumerate(text.splitlines(), 1)
            if len(line.encode()) > MOST_BYTES]


def main():
    assert wide_lines("x", "// " + 98 * "x") == ["x:1"] and not wide_lines("x", "// " + 97 * "x")
    files = cpp_files(*FOLDERS)
    assert len(files) > 50, "the list of files is not what it was"
    wide = [place for file in files
            for place in wide_lines(file.relative_to(ROOT), file.read_text())]
    if wide:
        print(f"lines of more than {MOST_BYTES} bytes:", *wide, sep="\n")
        return 1
    formatter = shutil.which("clang-format") or shutil.which("clang-format-14")
    if not formatter:
        print("clang-format is not installed")
        return 77
    command = [formatter, "--dry-run", "-Werror", "--ferror-limit=3", *map(str, files)]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
