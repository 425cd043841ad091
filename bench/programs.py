"""The programs that the benchmarks run."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def add_build_option(parser):
    parser.add_argument("--build", metavar="FOLDER", help="build folder with the programs in its bin/ (build/, brought up to date)")


def programs_of(build, *names):
    """The folder of the named programs: bin/ of a build folder, or of the project's own if `build`
    is None. That one is brought up to date first. Ends the benchmark with exit code 2, after a line,
    if it has no such program."""
    if not build and subprocess.run([ROOT / "scripts/build_for_bench.sh", *names]).returncode:
        sys.exit(2)
    folder = os.path.abspath(os.path.join(build or ROOT / "build", "bin"))
    for name in names:
        if not os.access(os.path.join(folder, name), os.X_OK):
            option = f"--build={build}: " if build else ""
            sys.stderr.write(f"{option}{folder}/{name} is not there; expected a build folder with programs in its bin/; "
                             "without --build they are built first\n")
            sys.exit(2)
    return folder
