#!/usr/bin/env python3
"""The names that a fork server reads in a script (agent/standby/python/script.py). It must stop
where what follows may depend on what the script does."""

import os
import pathlib
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[4]
TEXT = (ROOT / "agent/standby/python/script.py").read_text()


def find_spec(name, path):
    return sys.modules["_frozen_importlib_external"].PathFinder.find_spec(name, path)


class Packages:
    """`big` and `torch` are packages, and the standard library is."""

    def __init__(self, folder):
        self.shared = str(folder) + "/", os.path.dirname(os.__file__) + "/"

    def is_shared(self, spec):
        return spec.origin in ("built-in", "frozen") or bool(spec.origin and spec.origin.startswith(self.shared))


class ScriptNames(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun_test_")
        self.addCleanup(folder.cleanup)
        self.place = pathlib.Path(folder.name)
        self.write("site/big.py", "site/odd.py", "site/torch/__init__.py", "site/torch/_dynamo.py", "elsewhere/mine.py")
        before = sys.path[:], sys.argv[:]
        self.addCleanup(lambda: (sys.path.__setitem__(slice(None), before[0]), sys.argv.__setitem__(slice(None), before[1])))
        sys.path[:0] = [str(self.place / "site"), str(self.place / "elsewhere")]

    def write(self, *empty, **texts):
        for name, text in {**dict.fromkeys(empty, ""), **texts}.items():
            path = self.place / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)

    def read(self, text, files=None):
        """The names that are read in job/train.py, beside these files."""
        self.write(**{"job/train.py": text, **{f"job/{name}.py": inner for name, inner in (files or {}).items()}})
        sys.argv[:] = [str(self.place / "job/train.py")]
        importing = types.ModuleType("script")
        importing.__dict__.update(os=os, sys=sys, find_spec=find_spec, refuse=self.fail)
        exec(compile(TEXT, "script.py", "exec"), importing.__dict__)
        return importing.Script(Packages(self.place / "site")).read()

    def test_takes_what_comes_first(self):
        names = self.read('"""A script."""\nfrom __future__ import annotations\nimport os, big as b\nfrom torch import nn, optim\nVERSION = "1"\n'
                          "def late(x=1, y=None, *z: int) -> b.Thing:\n  import odd\nimport odd\n")
        self.assertEqual(names, ["__future__", "__future__:annotations", "os", "big", "torch", "torch:nn", "torch:optim", "odd", "torch._dynamo"])

    def test_stops_where_something_is_done(self):
        for statement in ("os.environ['X'] = '1'", "os.environ.update(X='1')", "x = os.putenv('X', '1')", "os.sep = '1'", "x, os.sep = 1, 2",
                          "del os.environ['X']", "print()", "if True:\n  pass", "with open('x'):\n  pass", "for x in '1':\n  pass", "class C:\n  pass",
                          "@big.decorate\ndef f():\n  pass", "def f(x=os.environ.setdefault('X', '1')):\n  pass", "def f(x: big()):\n  pass",
                          "def f() -> big():\n  pass", "x = [big() for _ in '1']", "x: int = big()", "from . import x", "assert big",
                          "try:\n  import os\nexcept ImportError:\n  os.environ['X'] = '1'", "try:\n  pass\nexcept OSError:\n  pass\nelse:\n  print()",
                          "try:\n  pass\nfinally:\n  print()", "try:\n  print()\nfinally:\n  pass"):
            with self.subTest(statement):
                self.assertNotIn("odd", self.read(f"import os, big\n{statement}\nimport odd\n"))

    def test_goes_on_behind_an_import_that_may_fail(self):
        self.assertIn("odd", self.read("try:\n  import nowhere\nexcept ImportError:\n  nowhere = None\nimport odd\n"))

    def test_reads_the_users_files(self):
        calm, does = "import big\n", "import os\nos.environ['X'] = '1'\n"
        for imports, files, goes_on in (("import own", {"own": calm}, True), ("import own", {"own": does}, False),
                                        ("from own import x", {"own/__init__": calm, "own/x": calm}, True),
                                        ("from own import x", {"own/__init__": calm, "own/x": does}, False),
                                        ("from own2 import x", {"own2/x": does}, False), ("import own3.x.y", {"own3/x/y": does}, False),
                                        ("import own4.x.y", {"own4/x/__init__": does, "own4/x/y": calm}, False),
                                        ("import mine", {}, False), ("import own5", {"own5": "import own6\n", "own6": "import own5\n"}, True),
                                        ("import own7", {"own7": "if\n"}, False)):
            with self.subTest(imports, files=files):
                self.assertEqual("odd" in self.read(f"{imports}\nimport odd\n", files), goes_on)

    def test_a_folder_without_init_goes_behind_a_package(self):
        self.write("job/big/data.csv")
        self.assertEqual(self.read("import big, odd\n"), ["big", "odd"])

    def test_what_is_imported_later_must_not_miss_a_variable(self):
        for text, later in (("import torch\ndef main():\n  torch.optim.SGD\n", True), ("import torch\ndef main():\n  torch.nn\n", False),
                            ("import torch, os\ndef main():\n  os.environ['RANK']\n  os.environ.get('X')\n  torch.optim\n", True),
                            ("import torch, os\ndef main():\n  os.environ['X'] = '1'\n  torch.optim\n", False),
                            ("import torch, os\ndef main():\n  os.environ.setdefault('X', '1')\n  torch.optim\n", False),
                            ("import torch\nfrom os import environ\ndef main():\n  del environ['X']\n  torch.optim\n", False),
                            ("import torch, os\ndef main():\n  os.putenv('X', '1')\n  torch.optim\n", False)):
            with self.subTest(text):
                self.assertEqual("torch._dynamo" in self.read(text), later)


if __name__ == "__main__":
    unittest.main(verbosity=2)
