"""The programs that the benchmarks run."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def add_build_option(parser):
    parser.add_argument("--build", metavar="DIR", help="build folder with the programs in its bin/ (build/, brought up to date)")


def programs_of(build, *names, flag="--build"):
    """The folder of the named programs. It is bin/ of the build folder that `flag` names. If
    `build` is None it is the project's own, which is brought up to date first. Ends the benchmark
    with exit code 2, after a line, if a program is not there."""
    if not build and subprocess.run([ROOT / "scripts/build_for_bench.sh", *names]).returncode:
        sys.exit(2)
    folder = os.path.abspath(os.path.join(build or ROOT / "build", "bin"))
    for name in names:
        if not os.access(os.path.join(folder, name), os.X_OK):
            given = f"{flag}={build}: " if build else ""
            sys.stderr.write(f"{given}{folder}/{name} is not there; expected a build folder with programs in its bin/; "
                             "without --build they are built first\n")
            sys.exit(2)
    return folder
