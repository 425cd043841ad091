#!/usr/bin/env python3
"""Imports that the workers of a node share, as a user meets them. The packages are those of a
virtual environment of the test's own. Each says which process imports it."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from machine import free_port, wait_until, waiting_standbys
from support import MARKER, REPORTING, JobTest, main, torch_python, with_variables

# Says how it runs, and in which process `big` was imported. Then waits in the attempts before LAST.
WORKER = """
import sys
{imports}
{reporting}
told = {"path": list(sys.path), "modules": sorted(sys.modules), "pid": os.getpid(), "parent": os.getppid(), "argv": sys.argv,
        "command": sys.orig_argv, "group": [os.getpgid(0), os.getsid(0)], "env": dict(os.environ), "file": __file__, "name": __name__,
        "spec": repr(__spec__), "shown": open("/proc/self/environ").read().split("\\0"), "line": open("/proc/self/cmdline").read(),
        "files": sorted(os.listdir("/proc/self/fd")), "comm": open("/proc/self/comm").read(), "values": {values}}
report(told)
count_a_step()
while attempt < int(sys.argv[2]):
    time.sleep(1000)
""".replace("{reporting}", REPORTING)
BIG = "import os\nPID = os.getpid()\n"
# Differ by their nature: the process, its files, and what a standby has.
OF_A_PROCESS = {"pid", "group", "modules", "values", "env", "shown"}
OF_A_JOB = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "DDPRUN_JOB", "DDPRUN_PAGE", MARKER}


class SharedImports(JobTest):
    def setUp(self):
        super().setUp()
        self.cache = self.folder / "cache"
        self.told = self.folder / "told"

    def environment(self, **modules):
        """A Python with `big` and these modules among its packages."""
        place = self.folder / "env"
        if not place.exists():
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        (packages,) = place.glob("lib/python3*/site-packages")
        for name, text in {"big": BIG, **modules}.items():
            file = packages / f"{name}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        return place / "bin/python"

    def begin(self, *flags, imports="import big", values="{'big': big.PID}", workers=2, last=0, python=None, name="worker.py", **variables):
        subprocess.run(["rm", "-rf", self.told], check=True)
        self.told.mkdir()
        script = self.script(WORKER.replace("{imports}", imports).replace("{values}", values), name)
        self.workers = workers
        variables = {"PYTHONDONTWRITEBYTECODE": "", **variables}
        env = with_variables(OMP_NUM_THREADS="1", LOGLEVEL="INFO", XDG_CACHE_HOME=str(self.cache), **variables)
        env["PYTHON_EXEC"] = str(python or self.environment())
        return self.start("--share-imports=1", f"--nproc-per-node={workers}", f"--max-restarts={last}", *flags, script, self.told, last, env=env)

    def said(self, attempt=0):
        """The reports of the workers of an attempt, by rank."""
        paths = [self.told / f"{rank}.{attempt}" for rank in range(self.workers)]
        wait_until(lambda: all(path.exists() for path in paths), f"all ranks in attempt {attempt}")
        return [json.loads(path.read_text()) for path in paths]

    def finished(self, job):
        code, self.out, self.err = job.finish()
        self.assertEqual(code, 0, self.err)
        job.wait_gone()

    def run_twice(self, **options):
        """The workers of two runs that share nothing, and share if they may."""
        runs = []
        for flag in "0", "1":
            self.finished(self.begin(f"--share-imports={flag}", **options))
            runs.append(self.said())
        return runs

    def shares(self, workers):
        """Whether one process has imported `big` for all of them, and is none of them."""
        pids = {one["values"]["big"] for one in workers}
        return len(pids) == 1 and pids.isdisjoint(one["pid"] for one in workers)

    def test_a_worker_is_as_it_is_when_it_starts_cold(self):
        cold, forked = self.run_twice(workers=12)
        self.assertFalse(self.shares(cold))
        self.assertTrue(self.shares(forked))
        for before, after in zip(cold, forked):
            self.assertEqual({key: after[key] for key in after if key not in OF_A_PROCESS | {"parent"}},
                             {key: before[key] for key in before if key not in OF_A_PROCESS | {"parent"}})
            self.assertLessEqual(set(before["modules"]), set(after["modules"]))
            self.assertEqual(after["group"], [after["pid"]] * 2)
            changed = {name for name in before["env"] | after["env"] if before["env"].get(name) != after["env"].get(name)}
            self.assertLessEqual(changed, OF_A_JOB)
            self.assertEqual({f"{name}={value}" for name, value in after["env"].items()}, set(filter(None, after["shown"])))

    def test_workers_are_the_agents_children(self):
        job = self.begin(last=1)
        first = self.said()
        self.assertEqual({one["parent"] for one in first}, {job.agent()})
        self.stop(job)

    def test_what_a_fork_copies_is_each_workers_own(self):
        python = torch_python()
        if not python:
            self.skipTest("needs numpy, in the virtual environment (scripts/setup.sh)")
        self.finished(self.begin(python=python, imports="import numpy, random, multiprocessing, tempfile, uuid",
                                 values="[numpy.random.rand(), random.random(), str(uuid.uuid1()), next(tempfile._get_candidate_names()), "
                                        "multiprocessing.current_process().authkey.hex()]"))
        for first, second in zip(*(one["values"] for one in self.said())):
            self.assertNotEqual(first, second)

    def test_shares_nothing_of_what_would_differ(self):
        """Each worker is as a cold one, and says what its import found."""
        cases = {
            "reads RANK": ("an import has read RANK", "import os\nVALUE = os.environ['RANK']\n"),
            "asks for MASTER_PORT": ("an import has read MASTER_PORT", "import os\nVALUE = os.environ.get('MASTER_PORT', '') > ''\n"),
            "copies all": ("an import has copied all variables", "import os\nVALUE = dict(os.environ)['RANK']\n"),
            "starts a thread": ("an import has started a thread",
                                "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
                                "VALUE = threading.active_count()\n"),
            "starts a process": ("an import has started a process", "import subprocess\nCHILD = subprocess.Popen(['sleep', '1000'])\n"
                                                                    "VALUE = CHILD.poll()\n"),
            "leaves a file open": ("an import has left .* open", "FILE = open(__file__)\nVALUE = FILE.tell()\n"),
            "makes a folder": ("an import has made a temporary folder", "import os, tempfile\nFOLDER = tempfile.TemporaryDirectory()\n"
                                                                          "VALUE = os.path.isdir(FOLDER.name)\n"),
            "makes a folder of its own": ("an import has made a temporary folder", "import os, tempfile\nFOLDER = tempfile.mkdtemp()\n"
                                                                          "os.rmdir(FOLDER)\nVALUE = os.path.exists(FOLDER)\n"),
            "goes elsewhere": ("an import has changed the working folder", "import os\nos.chdir('/usr')\nVALUE = os.getcwd()\n"),
            "changes the path": ("an import has changed the working folder or sys.path",
                                 "import sys\nsys.path.insert(0, '/nowhere')\nVALUE = sys.path.index('/nowhere')\n"),
            "sets ROLE_RANK": ("an import has read ROLE_RANK", "import os\nVALUE = os.environ['ROLE_RANK'] = '77'\n"),
            "takes orphans": ("an import has changed whose", "import ctypes\nVALUE = ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"),
            "opens a device": ("an import has left /dev/zero open", "FILE = open('/dev/zero', 'rb')\nVALUE = len(FILE.read(5))\n"),
            "fails": ("odd: ImportError", "raise ImportError('as ever')\n"),
            "ends Python": ("odd: SystemExit", "raise SystemExit(0)\n"),
            "needs the user's file": ("a package imports own, which is the user's|own lies beside the script", "import own\nVALUE = own.VALUE\n"),
        }
        (self.folder / "own.py").write_text("import os\nVALUE = os.environ['RANK']\n")
        for name, (why, text) in cases.items():
            with self.subTest(name):
                python = self.environment(odd=text)
                options = {"python": python, "name": f"{name.replace(' ', '_')}.py".replace("'", ""),
                           "imports": "import big\ntry: import odd\nexcept BaseException as error: odd = error",
                           "values": "{'big': big.PID, 'odd': [getattr(odd, 'VALUE', repr(odd)), os.environ['ROLE_RANK']]}"}
                cold, first = self.run_twice(**options)
                self.finished(self.begin(**options))
                second = self.said()
                for workers in first, second:
                    self.assertEqual([one["values"]["odd"] for one in workers], [one["values"]["odd"] for one in cold])
                self.assertTrue(self.shares(first), self.err)  # without `odd`
                self.assertTrue(self.shares(second), self.err)

    def test_says_why_nothing_is_shared(self):
        python = self.environment(reads="import os\nos.environ['RANK']\nimport big\n")
        self.finished(self.begin(python=python, imports="import reads\nimport big"))
        (packages,) = (self.folder / "env").glob("lib/python3*/site-packages")
        (packages / "trace.pth").write_text("import sys; sys.settrace(lambda *_: None)\n")
        self.finished(self.begin(python=python))
        self.assertFalse(self.shares(self.said()))
        self.assertIn("imports are not shared: a debugger or profiler is on", self.err)

    def test_the_users_files_are_run_in_the_workers_alone(self):
        (self.folder / "own.py").write_text("import os\nimport big\nPID = os.getpid()\n")
        for imports in "import big\nimport own", "import own\nimport big":
            with self.subTest(imports):
                self.finished(self.begin(imports=imports, values="{'big': big.PID, 'own': own.PID}"))
                workers = self.said()
                self.assertEqual([one["values"]["own"] for one in workers], [one["pid"] for one in workers])
                self.assertTrue(self.shares(workers), self.err)

    def test_a_file_beside_the_script_goes_before_a_package(self):
        (self.folder / "big.py").write_text("PID = 'mine'\n")
        self.finished(self.begin())
        self.assertEqual([one["values"]["big"] for one in self.said()], ["mine"] * 2)

    def test_knows_from_the_last_run_what_is_imported_late(self):
        late = "def late():\n  global big\n  import big\nlate()"
        self.finished(self.begin(imports=late))
        self.assertFalse(self.shares(self.said()))
        self.finished(self.begin(imports=late))
        self.assertTrue(self.shares(self.said()), self.err)
        (known,) = (self.cache / "ddprun/imports").iterdir()
        self.assertEqual(known.stat().st_mode & 0o777, 0o600)
        known.chmod(0o622)  # not the user's alone
        self.finished(self.begin(imports=late))
        self.assertFalse(self.shares(self.said()))
        self.finished(self.begin(imports=late + "\n"))  # another script
        self.assertFalse(self.shares(self.said()))

    def test_names_of_the_last_run_are_no_more_than_names(self):
        late = "def late():\n  global big\n  import big\nlate()"
        (self.folder / "own.py").write_text("import os\nopen('ran', 'w').close()\n")
        self.finished(self.begin(imports=late))
        (known,) = (self.cache / "ddprun/imports").iterdir()
        with open(known, "a") as file:
            file.write("+own\n+../own\n+no.such.module\n+big; import own\n+\n?\n" + "+x" * 1000)
        self.finished(self.begin(imports=late, PYTHONPATH=str(self.folder)))
        self.assertTrue(self.shares(self.said()), self.err)
        self.assertEqual(list(pathlib.Path().glob("ran")) + list(self.folder.glob("ran")), [])

    def test_a_variable_that_the_script_sets_ends_what_is_known(self):
        python = self.environment(reads="import os\nVALUE = os.environ.get('PREPARED')\n")
        imports = "import os\ndef late():\n  global big\n  import big\nlate()\nos.environ['PREPARED'] = 'yes'\nimport reads"
        for _ in range(2):
            self.finished(self.begin(python=python, imports=imports, values="{'big': big.PID, 'reads': reads.VALUE}"))
            workers = self.said()
            self.assertEqual([one["values"]["reads"] for one in workers], ["yes"] * 2)
        self.assertTrue(self.shares(workers), self.err)

    def test_an_import_sees_what_the_script_has_set_before_it(self):
        """At the first run by the text of the script, at the next ones by what is known."""
        python = self.environment(**{"reads": "import os\nVALUE = os.environ.get('PREPARED')\n", "torch/__init__": "optim = None\n",
                                     "torch/_dynamo": "import os\nVALUE = os.environ.get('PREPARED')\n"})
        for name, imports, value in (("at once", "import os\nos.environ['PREPARED'] = 'yes'\nimport reads, big", "reads.VALUE"),
                                     ("late", "import os, big\ndef late():\n  global reads\n  os.environ['PREPARED'] = 'yes'\n  import reads\nlate()",
                                      "reads.VALUE"),
                                     ("by its use", "import os, big, torch\nos.environ['PREPARED'] = 'yes'\ntorch.optim\nimport torch._dynamo",
                                      "torch._dynamo.VALUE")):
            with self.subTest(name):
                for _ in range(3):
                    self.finished(self.begin(python=python, imports=imports, values=value, name=name.replace(" ", "_") + ".py"))
                    self.assertEqual([one["values"] for one in self.said()], ["yes"] * 2)

    def test_what_is_known_holds_for_the_same_arguments(self):
        python = self.environment(reads="import os\nVALUE = os.environ.get('PREPARED')\n")
        imports = "import os, big\ndef late():\n  global reads\n  if sys.argv[2] == '0': os.environ['PREPARED'] = 'yes'\n  import reads\nlate()"
        for last in 1, 0, 1, 0:
            job = self.begin(python=python, imports=imports, values="reads.VALUE", last=last)
            self.assertEqual([one["values"] for one in self.said()], ["yes" if last == 0 else None] * 2)
            if last:
                self.stop(job)
            else:
                self.finished(job)

    def test_a_lock_of_an_import_is_each_workers_own(self):
        python = self.environment(locks="import multiprocessing\nLOCK = multiprocessing.Lock()\n")
        for _ in range(2):
            self.finished(self.begin(python=python, imports="import big, locks", values="{'big': big.PID, 'got': locks.LOCK.acquire(False)}"))
            workers = self.said()
            self.assertEqual([one["values"]["got"] for one in workers], [True] * 2)
            self.assertTrue(self.shares(workers), self.err)

    def test_what_an_import_prints_is_printed_by_each_worker(self):
        python = self.environment(loud="import sys\nprint('loud\\n', end='')\nprint('warned\\n', end='', file=sys.stderr)\n")
        self.finished(self.begin(python=python, imports="import big, loud", workers=3))
        self.assertTrue(self.shares(self.said()))
        self.assertEqual((self.out.count("loud\n"), self.err.count("warned\n")), (3, 3))

    def test_what_the_script_keeps_silent_stays_silent(self):
        python = self.environment(warns="import warnings\nwarnings.warn('of old')\n")
        imports = "import warnings\nwarnings.simplefilter('ignore')\nimport big, warns"
        for _ in range(2):
            self.finished(self.begin(python=python, imports=imports))
            self.assertNotIn("of old", self.err)
        self.assertTrue(self.shares(self.said()), self.err)

    def test_a_program_that_does_not_start(self):
        for text, wanted in ("import big\nif", "SyntaxError"), ("import big, nowhere", "No module named 'nowhere'"), ("import big\n1 / 0", "ZeroDivisionError"):
            script = self.script(text, "broken.py")
            ends = []
            for flag in 0, 1:
                env = with_variables(OMP_NUM_THREADS="1", XDG_CACHE_HOME=str(self.cache)) | {"PYTHON_EXEC": str(self.environment())}
                code, _, err = self.run_job(f"--share-imports={flag}", "--nproc-per-node=2", script, env=env)
                ends.append((code, wanted in err))
            self.assertEqual(ends, [(1, True)] * 2, wanted)
        code, _, err = self.run_job("--share-imports=1", "--nproc-per-node=2", self.folder / "nowhere.py")
        self.assertEqual(code, 1)
        self.assertIn("nowhere.py", err)

    def waiting_import(self):
        """A Python whose `slow` says its pid and waits to be told."""
        go = self.folder / "go"
        os.mkfifo(go)
        return go, self.environment(slow=f"import os\nopen('{self.ready}', 'w').write(f'{{os.getpid()}}\\n')\n"
                                         f"gate = os.open('{go}', os.O_RDONLY)\nos.read(gate, 1)\nos.close(gate)\n")

    def importing(self):
        return int(self.heard(1)[0])

    def test_a_signal_during_the_imports_ends_the_job(self):
        _, python = self.waiting_import()
        for signo in signal.SIGTERM, signal.SIGINT:
            job = self.begin(python=python, imports="import slow, big")
            self.importing()
            code, out, err, _ = self.stop(job, signo)
            self.assertEqual((code, out, err), (1, "", f"ddprun: received {signo.name}; the workers were stopped\n"))

    def test_a_fork_server_that_dies_leaves_cold_starts(self):
        go, python = self.waiting_import()
        job = self.begin(python=python, imports="import slow, big")
        os.kill(self.importing(), signal.SIGKILL)
        workers = {self.importing() for _ in range(2)}
        with open(go, "w") as told:
            told.write("go")  # a letter for each
            told.flush()
            self.finished(job)
        self.assertEqual({one["pid"] for one in self.said()}, workers)
        self.assertIn("imports are not shared: it has ended", self.err)

    def test_nothing_is_left_of_a_killed_agent(self):
        _, python = self.waiting_import()
        job = self.begin(python=python, imports="import slow, big")
        self.importing()
        os.kill(job.agent(), signal.SIGKILL)
        job.finish()
        job.wait_gone()
        job = self.begin(last=1)
        self.said()
        os.kill(job.agent(), signal.SIGKILL)
        job.finish()
        job.wait_gone()

    def test_restarts_come_of_the_same_imports(self):
        job = self.begin(last=3)
        first = self.said()
        server = first[0]["values"]["big"]
        for attempt in range(3):
            if attempt == 1:  # of a standby, and else before there is one
                standbys = wait_until(lambda: waiting_standbys(job.standbys()), "two standbys that wait")
            os.kill(self.said(attempt)[attempt % 2]["pid"], signal.SIGKILL)
            workers = self.said(attempt + 1)
            self.assertEqual([one["values"]["big"] for one in workers], [server] * 2)
            if attempt == 1:
                self.assertEqual({one["pid"] for one in workers}, set(standbys))
            for rank, one in enumerate(workers):
                self.assertEqual((one["env"]["RANK"], one["env"]["TORCHELASTIC_RESTART_COUNT"]), (str(rank), str(attempt + 1)))
        self.finished(job)

    def test_a_failure_while_it_learns(self):
        """The restart does not wait for it, or comes of it. The incident says the whole time."""
        go, python = self.waiting_import()
        job = self.begin(python=python, imports="import big\ndef late():\n  import slow\nlate()", last=1)
        workers = {self.importing() for _ in range(2)}
        with open(go, "w") as told:
            told.write("go")
            told.flush()
            self.assertEqual({one["pid"] for one in self.said()}, workers)
            learning = self.importing()
            self.assertNotIn(learning, workers)
            os.kill(min(workers), signal.SIGKILL)
            began = time.monotonic()
            second = {self.importing() for _ in range(2)}  # in vain for 5 s
            told.write("gogo")
            told.flush()
            self.assertEqual({one["pid"] for one in self.said(1)}, second)
            seconds = time.monotonic() - began
            self.finished(job)
        (lost,) = re.findall(r"re-formed.*first line ([\d.]+), .* s lost", self.err)
        self.assertGreater(float(lost), seconds - 1)
        self.assertNotIn("left", self.err, "behind, by workers")

    def test_a_standby_shares_what_was_imported_late(self):
        python = self.environment(late="import os\nPID = os.getpid()\n")
        job = self.begin(python=python, imports="import big\ndef soon():\n  global late\n  import late\nsoon()",
                         values="{'big': big.PID, 'late': late.PID}", last=1)
        first = self.said()
        self.assertEqual([one["values"]["late"] for one in first], [one["pid"] for one in first])
        standbys = wait_until(lambda: waiting_standbys(job.standbys()), "two standbys that wait")
        os.kill(first[0]["pid"], signal.SIGKILL)
        second = self.said(1)
        self.assertEqual({one["pid"] for one in second}, set(standbys))
        self.assertEqual([one["values"]["late"] for one in second], [first[0]["values"]["big"]] * 2)
        self.finished(job)

    def test_standbys_are_there_where_it_cannot_learn(self):
        """They are no forks then, and import all by themselves. A package that is looked for, and
        not imported, hinders none."""
        python = self.environment(locks="import multiprocessing, big\nLOCK = multiprocessing.Lock()\n",
                                  deep="import colorsys, importlib.util\nIS_THERE = bool(importlib.util.find_spec('shelve'))\n")
        job = self.begin(python=python, imports="import big, deep\ndef late():\n  import locks\nlate()", last=1)
        first = self.said()
        self.assertTrue(self.shares(first))
        standbys = wait_until(lambda: waiting_standbys(job.standbys()), "two standbys that wait")
        os.kill(first[0]["pid"], signal.SIGKILL)
        second = self.said(1)
        self.assertEqual({one["pid"] for one in second}, set(standbys))
        self.assertEqual([one["values"]["big"] for one in second], [one["pid"] for one in second])
        self.finished(job)
        self.assertIn("imports are not shared: an import has made memory that a fork shares", self.err)

    def test_without_standbys_and_restarts_too(self):
        job = self.begin("--standby=0", last=1)
        first = self.said()
        os.kill(first[0]["pid"], signal.SIGKILL)
        self.assertEqual({one["values"]["big"] for one in self.said(1)}, {first[0]["values"]["big"]})
        self.finished(job)

    def test_nodes_share_each_for_itself(self):
        jobs = []
        port = free_port()
        subprocess.run(["rm", "-rf", self.told], check=True)
        for _ in range(2):
            jobs.append(self.begin("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"))
        for job in jobs:
            self.finished(job)
        self.workers = 4
        pids = [one["values"]["big"] for one in self.said()]
        self.assertEqual((pids[0], pids[2]), (pids[1], pids[3]))
        self.assertNotEqual(pids[0], pids[2])

    def test_as_a_module(self):
        (self.folder / "train.py").write_text(WORKER.replace("{imports}", "import big").replace("{values}", "{'big': big.PID}"))
        self.told.mkdir()
        self.workers = 2
        env = with_variables(OMP_NUM_THREADS="1", XDG_CACHE_HOME=str(self.cache)) | {"PYTHON_EXEC": str(self.environment())}
        job = self.start("--share-imports=1", "--nproc-per-node=2", "-m", "train", self.told, 0, env=env, cwd=self.folder)
        self.finished(job)
        workers = self.said()
        self.assertTrue(self.shares(workers), self.err)
        self.assertEqual([one["file"] for one in workers], [str(self.folder / "train.py")] * 2)

    def test_small_programs_and_single_workers_start_alone(self):
        for flags, workers, name in ([], 2, "small.py"), ([], 1, "numpy.py"), (["--share-imports=0"], 2, "numpy.py"):
            self.finished(self.begin("--share-imports=auto", *flags, workers=workers, name=name,
                                     imports="import big" + ("  # numpy" if name == "numpy.py" else "")))
            self.assertFalse(self.shares(self.said()))
        self.finished(self.begin("--share-imports=auto", name="numpy.py", imports="import big  # numpy"))
        self.assertTrue(self.shares(self.said()))

    def test_flags_are_checked(self):
        self.refused(2, ["--share-imports=2", "auto", "0", "1"], "--share-imports=2", "/bin/true")


if __name__ == "__main__":
    main()
