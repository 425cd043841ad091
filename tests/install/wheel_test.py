#!/usr/bin/env python3
"""The wheel: what is in it, which Python its program takes, and its types."""

import re
import resource
import sys
import unittest
import zipfile

from support import PACKAGE, ROOT, FolderTest, made, make_wheel, run, run_tests_or_make, tool, variables

SECONDS = 12  # of the processor, from a built tree to the wheel
TAG = "py3-none-manylinux_2_17_x86_64.musllinux_1_1_x86_64"
SAY_PYTHON = "import sys; print('python is', sys.executable)\n"


def make_environment(folder):
    """A fresh virtual environment with the wheel."""
    wheel = make_wheel(folder)
    run(sys.executable, "-m", "venv", folder / "venv")
    run(folder / "venv/bin/python", "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel)


def processor_time_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Wheel(FolderTest):
    def setUp(self):
        super().setUp()
        wheels = list(made(make_environment).glob("*.whl"))
        if not wheels:
            make_wheel(self.folder)  # skips, and says why
        (self.wheel,) = wheels
        self.programs = self.wheel.parent / "venv" / "bin"

    def test_is_made_in_seconds_and_has_the_projects_version(self):
        before = processor_time_of_children()
        again = make_wheel(self.folder)
        took = processor_time_of_children() - before
        print(f"made in {took:.1f} s, {self.wheel.stat().st_size / 1e6:.1f} MB")
        self.assertLess(took, SECONDS)
        self.assertEqual(again.name, self.wheel.name)
        version = re.search(r"project\(ddprun VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
        self.assertEqual(self.wheel.name, f"ddprun-{version}-{TAG}.whl")
        self.assertLess(self.wheel.stat().st_size, 24 << 20)

    def test_has_the_programs_and_the_package_and_nothing_else(self):
        programs = {f"V.data/scripts/{name}" for name in ("ddprun", "ddprund", "ddpctl")}
        with zipfile.ZipFile(self.wheel) as wheel:
            names = {re.sub(r"^ddprun-[\d.]*\d", "V", name) for name in wheel.namelist()}
            self.assertEqual({name for name in names if name.startswith("V.data")}, programs)
            sources = {f"ddprun/{path.name}" for path in (PACKAGE / "ddprun").iterdir() if path.is_file()}
            self.assertEqual({name for name in names if not name.startswith("V.")}, sources | {"ddprun.pth"})
            for entry in wheel.infolist():
                if "/scripts/" in entry.filename:
                    self.assertEqual(entry.external_attr >> 16 & 0o777, 0o755, entry.filename)

    def test_brings_what_its_programs_contain_and_the_notices(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = {re.sub(r"^ddprun-[\d.]*\d", "V", name) for name in wheel.namelist()}
        for name in "licenses/LICENSE", "licenses/linked-libraries", "sboms/ddprun.spdx.json":
            self.assertIn(f"V.dist-info/{name}", names)

    def test_daemon_and_operator_run_from_there(self):
        for name in "ddprund", "ddpctl":
            self.assertRegex(run(self.programs / name, "--version"), rf"^{name} \d")

    def test_needs_no_other_package_and_an_old_python_at_most(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))).decode()
        self.assertNotIn("Requires-Dist", metadata)
        self.assertIn("\nRequires-Python: >=3.9\n", metadata)

    def test_a_virtual_environment_that_is_not_active_runs_its_own_python(self):
        script = self.file("say.py", SAY_PYTHON)
        for command in (["ddprun"], ["python", "-m", "ddprun"], ["python", "-m", "ddprun.run"], ["ddprun-launch", "--use-env"]):
            said = run(self.programs / command[0], *command[1:], "--nproc-per-node=1", script, cwd=self.folder)
            self.assertRegex(said, f"python is {self.programs}/python3?\n")

    def test_the_module_run_takes_the_arguments_of_torch_distributed_run(self):
        script = self.file("say.py", "import os, sys; print(os.environ['RANK'], os.environ['WORLD_SIZE'], sys.argv[1:])\n")
        said = run(self.programs / "python", "-m", "ddprun.run", "--nnodes=1", "--nproc_per_node=2", "--rdzv-backend=c10d",
                   "--rdzv-endpoint=localhost:0", "--max-restarts=1", "-m", "say", "--lr", "1", cwd=self.folder, env=variables(PYTHONPATH=str(self.folder)))
        self.assertEqual(sorted(line for line in said.splitlines() if "--lr" in line), [f"{rank} 2 ['--lr', '1']" for rank in range(2)])
        self.assertTrue(script.exists())

    def test_ddprun_launch_hands_the_local_rank(self):
        script = self.file("say.py", "import sys; print('arguments', sys.argv[1:])\n")
        self.assertIn("arguments ['--local-rank=0', 'x']", run(self.programs / "ddprun-launch", script, "x"))

    def test_python_exec_of_the_user_goes_first(self):
        said = run(self.programs / "python", "-m", "ddprun", self.file("say.py", SAY_PYTHON), env=variables(PYTHON_EXEC=sys.executable))
        self.assertIn(f"python is {sys.executable}\n", said)

    def test_goes_without_a_trace(self):
        make_environment(self.folder)
        run(self.folder / "venv/bin/python", "-m", "pip", "uninstall", "-q", "-y", "ddprun")
        self.assertEqual([path for path in (self.folder / "venv").rglob("*ddprun*")], [])

    def test_a_conda_prefix_runs_its_own_python(self):
        """A prefix of conda has no pyvenv.cfg, but a folder conda-meta."""
        prefix = self.folder / "conda"
        (prefix / "conda-meta").mkdir(parents=True)
        with zipfile.ZipFile(self.wheel) as wheel:
            wheel.extractall(self.folder / "wheel")
        program = next((self.folder / "wheel").glob("*.data/scripts/ddprun"))
        (prefix / "bin").mkdir()
        program.rename(prefix / "bin" / "ddprun").chmod(0o755)
        self.file("conda/bin/python3", "#!/bin/sh\necho python is $0\n", 0o755)
        said = run(prefix / "bin" / "ddprun", self.file("say.py", SAY_PYTHON))
        self.assertIn(f"python is {prefix}/bin/python3\n", said)

    def test_auditwheel_finds_nothing_to_repair(self):
        said = run(tool("auditwheel"), "show", self.wheel)
        self.assertIn("requires no external shared libraries", said)

    def test_twine_would_upload_it(self):
        self.assertIn("PASSED", run(tool("twine"), "check", "--strict", self.wheel))


class Types(unittest.TestCase):
    def test_strict_mypy(self):
        self.assertIn("no issues found", run(tool("mypy"), "--strict", "--cache-dir=/dev/null", PACKAGE / "ddprun"))

    def test_only_the_standard_library(self):
        """In an interpreter without site-packages, and with nothing of the environment."""
        code = f"import sys; sys.path.insert(0, {str(PACKAGE)!r}); import ddprun; print(sorted(ddprun.__all__))"
        self.assertEqual(run(sys.executable, "-I", "-S", "-B", "-c", code), "['DefaultLogsSpecs', 'Failed', 'LaunchConfig', 'elastic_launch', 'ending', 'launch', 'should_save']\n")


if __name__ == "__main__":
    run_tests_or_make(make_environment)
