"""The common parts of the tests of the installed forms. Only the standard library."""

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "house"))

from sources import run_tests  # noqa: E402, F401

DDPRUN = pathlib.Path(os.environ.get("DDPRUN", ROOT / "build" / "bin" / "ddprun"))
BUILD = DDPRUN.parents[1]
PACKAGE = ROOT / "launcher" / "python"
# A compiler that shares a busy machine may need two minutes for one file with LibTorch.
DEADLINE_S = 280
# Variables that a shell or another job may have set, and that would choose another interpreter or
# another package.
NOT_OURS = ("PET_", "TORCH", "OMP_", "PYTHON", "VIRTUAL_ENV", "CONDA", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_")


def variables(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
    return kept | more


def run(*command, expect=0, deadline=DEADLINE_S, **popen):
    """Runs it to its end; what it printed. Another exit code than `expect` fails with that
    output."""
    popen.setdefault("env", variables())
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          stdin=subprocess.DEVNULL, timeout=deadline, **popen)
    if expect is not None and done.returncode != expect:
        raise AssertionError(f"exit code {done.returncode} of {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def tool(name):
    """The program, of PATH or of the environment that makes the wheel."""
    found = shutil.which(name, path=f"{ROOT / '.venv-wheel' / 'bin'}:{os.environ.get('PATH', '')}")
    if found is None:
        raise unittest.SkipTest(f"no {name} here")
    return found


def built(*paths):
    for path in paths:
        if not path.exists():
            raise unittest.SkipTest(f"{path} is not built")


class FolderTest(unittest.TestCase):
    """Each test has an empty folder, which goes with it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-install-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, text, mode=0o644):
        path = self.folder / name
        path.write_text(text)
        path.chmod(mode)
        return path


def make_wheel(folder):
    """The wheel of the built program; skips where what makes it has not been installed."""
    if not (ROOT / ".venv-wheel" / "installed.txt").exists():
        raise unittest.SkipTest("no .venv-wheel here: scripts/build_wheel.sh makes it")
    return pathlib.Path(run(ROOT / "scripts" / "build_wheel.sh", folder, env=variables(DDPRUN=str(DDPRUN))).split()[-1])


def install_tree(prefix, component):
    built(BUILD / "share" / "ddprun.1")
    run("cmake", "--install", BUILD, "--prefix", prefix, "--component", component)


@functools.cache
def made(make):
    """The folder that make(folder) has filled: before all tests, by `--make` (DDPRUN_MADE), else
    now, for this process."""
    if "DDPRUN_MADE" in os.environ:
        return pathlib.Path(os.environ["DDPRUN_MADE"])
    folder = tempfile.TemporaryDirectory(prefix="ddprun-install-test-")
    unittest.addModuleCleanup(folder.cleanup)
    make(pathlib.Path(folder.name))
    return pathlib.Path(folder.name)


def run_tests_or_make(make):
    """run_tests(), or with `--make FOLDER` what made(make) then finds in FOLDER."""
    if sys.argv[1:2] != ["--make"]:
        run_tests()
    folder = pathlib.Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        make(folder)
    except unittest.SkipTest as reason:
        print(reason)
        sys.exit(77)
