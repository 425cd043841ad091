#!/usr/bin/env python3
"""Programs outside the project find the installed engine and build on it. README's program trains
two ranks; another one reads a table.

They see no Boost and none of the engine's insides. Each public header compiles alone.
"""

import os
import pathlib
import re
import runpy
import shutil
import sys

from support import BUILD, DDPRUN, ROOT, FolderTest, built, install_tree, run, run_tests, variables

CONSUMER = ROOT / "tests" / "install" / "consumer"
PUBLIC_HEADERS = ROOT / "scripts" / "public_headers"
CACHE = BUILD / "CMakeCache.txt"


def torch_folder():
    return pathlib.Path(re.search(r"^DDPRUN_TORCH_DIR:PATH=(.*)$", CACHE.read_text(), re.MULTILINE)[1])


class Consumer(FolderTest):
    def setUp(self):
        super().setUp()
        built(BUILD / "worker/startup/libddprun_worker_startup.a", BUILD / "worker/data/libddprun_worker_data.a",
              torch_folder() / "lib" / "libtorch_cpu.so")
        self.prefix = self.folder / "prefix"
        install_tree(self.prefix, "ddprun-dev")
        self.source = self.folder / "source"
        shutil.copytree(CONSUMER, self.source)
        (program,) = re.findall(r"^```cpp\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
        (self.source / "train.cc").write_text(program)

    def configure(self, *definitions, expect=0, **more):
        return run("cmake", "-G", "Ninja", "-S", self.source, "-B", self.folder / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}",
                   "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", *definitions, expect=expect, env=variables(**more))

    def test_builds_and_trains_two_ranks(self):
        self.configure(f"-DDDPRUN_TORCH_DIR={torch_folder()}")
        run("cmake", "--build", self.folder / "build")
        said = run(DDPRUN, "--standalone", "--nproc-per-node=2", self.folder / "build" / "train", cwd=self.folder)
        losses = [float(loss) for loss in re.findall(r"epoch \d: loss (\S+)", said)]
        self.assertEqual(len(losses), 3, said)  # rank 0 alone tells them
        self.assertGreater(losses[0], losses[2])
        self.assertTrue((self.folder / "run.pt").is_file())
        self.file("t.csv", "30,clerk\n41,baker\n22,clerk\n")
        self.assertEqual(run(self.folder / "build" / "table", self.folder / "t.csv").split(), ["2", "1", "2"])
        included = run("ninja", "-C", self.folder / "build", "-t", "deps")
        self.assertIn("/ddprun/data_parallel.h", included)
        self.assertNotIn("/boost/", included)
        self.assertNotIn(f"{ROOT}/", included.replace(str(torch_folder()), "").replace(str(self.folder), ""))

    def test_each_public_header_compiles_alone(self):
        """scripts/public_headers compiles those that changed."""
        installed = {str(path.relative_to(self.prefix / "include")): path.read_text()
                     for path in (self.prefix / "include").rglob("*.h")}
        self.assertEqual(installed, runpy.run_path(str(PUBLIC_HEADERS))["read_headers"]())
        self.assertEqual({str(pathlib.Path(name).parent) for name in installed}, {"ddprun"})
        self.assertLessEqual(len(installed), 25)  # docs/decisions/0045
        said = run(PUBLIC_HEADERS)
        self.assertRegex(said, rf"of {len(installed)} headers compiled alone, 0 failed")

    def test_a_header_that_changed_is_compiled_again(self):
        """So are those that include it, and all of them with another compiler."""
        make_keys = runpy.run_path(str(PUBLIC_HEADERS))["make_keys"]
        headers = {"ddprun/a.h": "int a();\n", "ddprun/b.h": "#include <ddprun/a.h>\n", "ddprun/c.h": "int c();\n"}
        before = make_keys(headers, "12")
        after = make_keys({**headers, "ddprun/a.h": "int a;\n"}, "12")
        self.assertEqual({name for name in headers if before[name] != after[name]}, {"ddprun/a.h", "ddprun/b.h"})
        self.assertFalse(set(before.values()) & set(make_keys(headers, "13").values()))

    def test_a_header_that_lacks_an_include_is_told(self):
        command = runpy.run_path(str(PUBLIC_HEADERS))
        command["compile_alone"].__globals__["FOLDERS"] = (self.folder,)
        (self.folder / "ddprun").mkdir()
        self.file("ddprun/lacks.h", "#pragma once\nstd::string lacks();\n")
        said = command["compile_alone"]("ddprun/lacks.h", torch_folder(), self.folder)
        self.assertIn("<ddprun/lacks.h> does not compile alone:\n", said)
        self.assertIn("lacks.h:2:", said)

    def test_takes_the_torch_of_python3(self):
        """A stand-in for a python3 that has torch. The question is the package's folder, and torch
        is not imported."""
        programs = self.folder / "bin"
        programs.mkdir()
        self.file("bin/python3", f"#!/bin/sh\nexec {sys.executable} -c 'print(\"{torch_folder()}\")'\n", 0o755)
        self.configure(PATH=f"{programs}:{os.environ['PATH']}")
        cache = (self.folder / "build" / "CMakeCache.txt").read_text()
        self.assertIn(f"DDPRUN_TORCH_DIR:PATH={torch_folder()}\n", cache)

    def python3(self, name, prints):
        """A folder with a python3 that prints this."""
        (self.folder / name).mkdir()
        self.file(f"{name}/python3", f"#!/bin/sh\necho '{prints}'\n", 0o755)
        return self.folder / name

    def test_a_failure_is_forgotten_when_its_cause_is_gone(self):
        """In one build folder: a python3 without torch, one with another release, none that can
        run, the right one."""
        (self.folder / "old" / "lib").mkdir(parents=True)
        self.file("old/lib/libtorch_cpu.so", "")
        self.file("old/version.py", "__version__ = '1.9.0+cpu'\n")
        for name, prints, said in (("without", "", "the python3 on PATH, has no torch"),
                                   ("other", self.folder / "old", "__version__ = '1.9.0"),
                                   ("nowhere", self.folder / "gone", f"has its torch at {self.folder}/gone")):
            with self.subTest(name):
                folder = self.python3(name, prints)
                text = " ".join(self.configure(expect=1, PATH=f"{folder}:{os.environ['PATH']}").split())
                self.assertIn(said, text)
                self.assertIn("-DDDPRUN_TORCH_DIR=", text)
                if name != "other":
                    self.assertIn(f"{folder}/python3", text)
        self.configure(PATH=f"{self.python3('right', torch_folder())}:{os.environ['PATH']}")

    def test_asks_again_where_the_torch_that_it_found_has_gone(self):
        """An environment that was made anew under another name; what the user has set is never
        asked anew."""
        moved = self.folder / "moved"
        moved.symlink_to(torch_folder().parent)
        self.configure(PATH=f"{self.python3('first', moved / 'torch')}:{os.environ['PATH']}")
        moved.unlink()
        self.configure(PATH=f"{self.python3('second', torch_folder())}:{os.environ['PATH']}")
        cache = (self.folder / "build" / "CMakeCache.txt").read_text()
        self.assertIn(f"DDPRUN_TORCH_DIR:PATH={torch_folder()}\n", cache)

    def test_says_what_is_missing(self):
        said = self.configure(f"-DDDPRUN_TORCH_DIR={self.folder}", expect=1)
        self.assertRegex(" ".join(said.split()), rf"DDPRUN_TORCH_DIR={self.folder}: no LibTorch there; expected the folder torch of a")

    def test_refuses_another_release_of_torch(self):
        (self.folder / "lib").mkdir()
        self.file("lib/libtorch_cpu.so", "")
        self.file("version.py", "__version__ = '1.9.0+cpu'\n")
        said = self.configure(f"-DDDPRUN_TORCH_DIR={self.folder}", expect=1)
        self.assertRegex(" ".join(said.split()), r"__version__ = '1.9.0\+cpu', expected release \d+\.\d+\.\d+")


if __name__ == "__main__":
    run_tests()
