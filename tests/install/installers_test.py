#!/usr/bin/env python3
"""Each way in which users install ddprun: its workers get the Python that has torch. Else one line
says what to type. torch is a folder of that name, and no registry is asked."""

import shutil
import sys
import unittest
import zipfile

from support import FolderTest, made, make_wheel, run, run_tests_or_make, tool, variables

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = f"lib/python{VERSION}/site-packages"
SCRIPT = "import sys, torch; print('torch of', torch.__file__)\n"
ADVICE = r"ddprun: workers run with \S+, which has no torch; also here: .*; type `PYTHON_EXEC=\S+ ddprun …`, or activate the environment"
# Nothing is looked up in a registry, and no file of the user's is read.
OFFLINE = {"UV_OFFLINE": "1", "UV_NO_CONFIG": "1", "UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never", "PIP_NO_INDEX": "1",
           "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIPX_DEFAULT_PYTHON": sys.executable}


def environment(folder, has_torch):
    """A virtual environment, with a torch that can be imported or without; pip is in neither."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    if has_torch:
        (folder / PACKAGES / "torch").mkdir()
        (folder / PACKAGES / "torch/__init__.py").write_text("")
    return folder


def unpack(wheel, folder):
    """The files of a wheel as pip lays them into an environment."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / PACKAGES)
    for scripts in (folder / PACKAGES).glob("ddprun-*.data/scripts"):
        for program in scripts.iterdir():
            program.chmod(0o755)
            shutil.move(program, folder / "bin" / program.name)
    return folder / "bin/ddprun"


class Installers(FolderTest):
    def setUp(self):
        super().setUp()
        (self.wheel,) = made(make_wheel).glob("*.whl")
        self.script = self.file("train.py", SCRIPT)
        self.env = OFFLINE | {"HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache")}
        self.without = environment(self.folder / "without", False)
        self.project = environment(self.folder / "project", True)
        # The system's Python, without torch. It is behind all others on PATH.
        self.system = environment(self.folder / "system", False)

    def installed(self, name, *command):
        """Runs an installer; skips where it is not here."""
        program = tool(name)
        run(program, *command, env=variables(**self.env))
        return program

    def start(self, *command, active=None, variable="VIRTUAL_ENV", expect=0):
        """Starts ddprun while an environment is active, or none."""
        folders = [active / "bin"] if active else []
        path = ":".join(map(str, [*folders, self.system / "bin", "/usr/bin", "/bin"]))
        env = variables(**self.env, PATH=path, **({variable: str(active)} if active else {}))
        return run(*command, "--nproc-per-node=1", self.script, env=env, expect=expect, cwd=self.folder)

    def tell(self, active, variable, result):
        """Prints a row of the table that the tests are."""
        shown = f"{variable}={active.name}" if active else "none active"
        print(f"{self.id().rpartition('.')[2]:40} {shown:28} {result}", flush=True)

    def has_torch_of(self, folder, *command, active=None, variable="VIRTUAL_ENV"):
        self.tell(active, variable, f"torch of {folder.name}")
        self.assertIn(f"torch of {folder / PACKAGES / 'torch/__init__.py'}", self.start(*command, active=active, variable=variable))

    def says_what_to_type(self, *command, active=None):
        self.tell(active, "VIRTUAL_ENV", "says what to type")
        said = self.start(*command, active=active, expect=1)
        self.assertRegex(said, ADVICE)
        self.assertIn(f"{active or self.system}/bin/python3", said)

    def gives_way(self, *command):
        """ddprun has no torch beside it."""
        self.has_torch_of(self.project, *command, active=self.project)
        self.has_torch_of(self.project, *command, active=self.project, variable="CONDA_PREFIX")
        self.says_what_to_type(*command)
        self.says_what_to_type(*command, active=self.without)

    def stays(self, own, *command):
        """ddprun lies beside torch."""
        self.has_torch_of(own, *command)
        self.has_torch_of(own, *command, active=self.without)
        self.has_torch_of(own, *command, active=own)

    def test_uv_tool_install(self):
        self.env |= {"UV_TOOL_DIR": str(self.folder / "tools"), "UV_TOOL_BIN_DIR": str(self.folder / "bin")}
        self.installed("uv", "tool", "install", self.wheel)
        self.gives_way(self.folder / "bin/ddprun")

    def test_uvx(self):
        self.gives_way(tool("uvx"), "--from", self.wheel, "ddprun")

    def test_pipx(self):
        self.env |= {"PIPX_HOME": str(self.folder / "pipx"), "PIPX_BIN_DIR": str(self.folder / "bin")}
        self.installed("pipx", "install", "--backend=uv", self.wheel)
        self.gives_way(self.folder / "bin/ddprun")

    def test_uv_run(self):
        """In a project that depends on ddprun. uv makes its environment and runs what is there."""
        project = self.folder / "uv_project"
        project.mkdir()
        (project / "pyproject.toml").write_text(
            f'[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.9"\ndependencies = ["ddprun @ {self.wheel.as_uri()}"]\n')
        uv = self.installed("uv", "sync", "--project", project)
        own = project / ".venv"
        command = uv, "run", "--no-sync", "--project", project, "ddprun"
        self.says_what_to_type(*command)
        (own / PACKAGES / "torch").mkdir()
        (own / PACKAGES / "torch/__init__.py").write_text("")
        self.has_torch_of(own, *command)
        self.has_torch_of(own, *command, active=self.project)

    def test_plain_environment(self):
        self.stays(self.project, unpack(self.wheel, self.project))

    def test_plain_environment_without_torch(self):
        other = environment(self.folder / "other", False)
        self.gives_way(unpack(self.wheel, other))

    def test_conda(self):
        (self.project / "conda-meta").mkdir()
        self.stays(self.project, unpack(self.wheel, self.project))
        base = environment(self.folder / "base", False)
        (base / "conda-meta").mkdir()
        self.gives_way(unpack(self.wheel, base))

    def test_system_pip(self):
        """/usr/local/bin/ddprun belongs to no environment: PATH says which Python."""
        (self.folder / "usr/bin").mkdir(parents=True)
        program = unpack(self.wheel, self.folder / "usr")
        self.has_torch_of(self.project, program, active=self.project)
        self.assertRegex(self.start(program, expect=1), "which has no torch; type `PYTHON_EXEC=")


if __name__ == "__main__":
    run_tests_or_make(make_wheel)
