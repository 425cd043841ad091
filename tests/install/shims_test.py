#!/usr/bin/env python3
"""`ddprun shims on|off` beside a torch that pip installs: a package of that name with a program
`torchrun`."""

import os
import shutil
import sys
import unittest
import zipfile

from support import DDPRUN, FolderTest, built, run, run_tests, tool, variables

TORCHRUN = "import sys\ndef main():\n    print('torch', __import__('torch').VERSION, sys.argv[1:])\n"


def wheel_of_torch(folder, version):
    """A wheel as pip takes it: the package, and the program `torchrun`."""
    path = folder / f"torch-{version}-py3-none-any.whl"
    about = f"torch-{version}.dist-info"
    files = {"torch/__init__.py": f"VERSION = {version!r}\n", "torch/run.py": TORCHRUN,
             f"{about}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
             f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
             f"{about}/entry_points.txt": "[console_scripts]\ntorchrun = torch.run:main\n"}
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


class Shims(FolderTest):
    def setUp(self):
        super().setUp()
        built(DDPRUN)
        self.venv = self.folder / "venv"
        run(sys.executable, "-m", "venv", "--without-pip", self.venv)
        self.bin = self.venv / "bin"
        shutil.copy(DDPRUN, self.bin / "ddprun")
        self.script = self.file("say.py", "import os; print('worker', os.environ['RANK'], os.environ['DDPRUN_JOB'] != '')\n")

    def install(self, version):
        run(tool("uv"), "pip", "install", "--python", self.bin / "python", "--offline", "--no-index", "--no-config", wheel_of_torch(self.folder, version),
            env=variables(HOME=str(self.folder)))

    def run_torchrun(self, *args):
        return run("torchrun", *args, cwd=self.folder, env=variables(PATH=f"{self.bin}:{os.environ['PATH']}", VIRTUAL_ENV=str(self.venv)))

    def shims(self, word):
        return run(self.bin / "ddprun", "shims", word, env=variables(PATH=f"{self.bin}:/usr/bin:/bin"))

    def doctor(self):
        said = run(self.bin / "ddprun", "doctor", expect=None, env=variables(PATH=f"{self.bin}:/usr/bin:/bin"))
        return [line for line in said.splitlines() if " torchrun:" in line]

    def test_programs_that_call_torchrun_get_ddprun_until_it_is_undone(self):
        self.install("2.11")
        self.assertEqual(self.run_torchrun("x"), "torch 2.11 ['x']\n")
        self.assertEqual(self.doctor(), [])
        self.assertEqual(self.shims("on"), f"ddprun: {self.bin}/torchrun is ddprun; torch's is torchrun.torch; `ddprun shims off` undoes it\n")
        self.assertIn("worker 1 True", self.run_torchrun("--nproc_per_node=2", self.script))
        self.assertEqual(self.doctor(), [f"ok   torchrun: {self.bin}/torchrun is ddprun"])
        self.assertEqual(self.shims("off"), f"ddprun: {self.bin}/torchrun is torch's\n")
        self.assertEqual(self.run_torchrun("x"), "torch 2.11 ['x']\n")

    def test_the_doctor_says_when_an_installer_has_undone_it(self):
        self.install("2.11")
        self.shims("on")
        self.install("2.15")
        (line,) = self.doctor()
        self.assertIn("is torch's again", line)
        self.assertEqual(self.run_torchrun("x"), "torch 2.15 ['x']\n")
        self.shims("on")
        self.assertIn("worker 0 True", self.run_torchrun(self.script))
        self.shims("off")
        self.assertEqual(self.run_torchrun("x"), "torch 2.15 ['x']\n")

    def test_wrong_words_and_a_script_of_that_name(self):
        self.assertIn("shims: expected `on` or `off` behind it", run(self.bin / "ddprun", "shims", "maybe", expect=2, cwd=self.folder))
        self.file("shims", "#!/bin/sh\necho script $1\n", 0o755)
        self.assertIn("script on", run(self.bin / "ddprun", "shims", "on", cwd=self.folder))
        self.assertFalse(os.path.lexists(self.bin / "torchrun"))

    @unittest.skipUnless(os.geteuid() == 0, "root becomes a user who may not write there")
    def test_a_folder_that_may_not_be_written(self):
        for folder in (self.folder, self.venv, self.bin):
            folder.chmod(0o755)
        said = run("setpriv", "--reuid=65534", "--clear-groups", self.bin / "ddprun", "shims", "on", expect=1)
        self.assertEqual(said, f"ddprun: {self.bin}/torchrun: Permission denied\n")


if __name__ == "__main__":
    run_tests()
