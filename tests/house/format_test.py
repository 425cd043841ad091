#!/usr/bin/env python3
"""Every C++ file is as clang-format would write it. Exit code 77 where clang-format is not installed."""

import shutil
import subprocess
import sys

from sources import ROOT, cpp_files

FOLDERS = ("base", "proto", "store", "rendezvous", "agent", "launcher", "worker", "examples", "bench", "tests")


def main():
    formatter = shutil.which("clang-format") or shutil.which("clang-format-14")
    if not formatter:
        print("clang-format is not installed")
        return 77
    files = cpp_files(*FOLDERS)
    assert len(files) > 50, "the list of files is not what it was"
    return subprocess.run([formatter, "--dry-run", "-Werror", "--ferror-limit=3", *map(str, files)], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
