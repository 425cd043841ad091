#!/usr/bin/env python3
"""Standby workers and the Python hook, as a user meets them. The workers are Python without
PyTorch. They count a step themselves, and import a module of a virtual environment of their own."""

import json
import os
import pathlib
import re
import signal
import site
import subprocess
import sys

from machine import environment_of, wait_until, waiting_standbys
from support import MARKER, REPORTING, JobTest, main, with_variables

# The workers run unbuffered. So print() writes one piece only if it is given one text with its end.
# The pieces of two ranks may mix. Says that it runs, and how. Counts a step, as an optimizer's
# would be, and waits to be killed; ends well in the attempt LAST.
WORKER = """
import sys
begin = {"path": list(sys.path), "modules": sorted(sys.modules)}
{reporting}
{imports}
told = {**begin, "pid": os.getpid(), "env": dict(os.environ), "argv": sys.argv, "file": __file__, "name": __name__,
        "shown": open("/proc/self/environ").read().split("\\0")}
report(told)
for name, stream in ("out", sys.stdout), ("err", sys.stderr):
    print(f"{name} of {os.environ['RANK']} {attempt}\\n", end="", file=stream, flush=True)
if attempt < int(sys.argv[2]):
    count_a_step()
    while True:
        time.sleep(1000)
""".replace("{reporting}", REPORTING)
# Variables of a single attempt.
OF_AN_ATTEMPT = {"TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE", "MASTER_PORT"}
OURS = {"DDPRUN_JOB", "DDPRUN_PAGE", MARKER}


class Standby(JobTest):
    def setUp(self):
        super().setUp()
        self.told = self.folder / "told"
        self.told.mkdir()

    def begin(self, *flags, imports="", last=1, workers=2, python=sys.executable, told=None, **variables):
        self.told = told or self.told
        script = self.script(WORKER.replace("{imports}", imports), "worker.py")
        job = self.start(f"--nproc-per-node={workers}", f"--max-restarts={last}", *flags, script, self.told, last,
                         env=with_variables(OMP_NUM_THREADS="1", **variables) | {"PYTHON_EXEC": str(python)})
        for rank in range(workers):
            self.said(rank, 0)
        return job

    def said(self, rank, attempt):
        path = self.told / f"{rank}.{attempt}"
        wait_until(path.exists, f"rank {rank} in attempt {attempt}")
        return json.loads(path.read_text())

    def waiting(self, job, count=2):
        """Pids of the standbys, when so many wait."""
        return wait_until(lambda: waiting_standbys(job.standbys(), count), f"{count} standbys that wait")

    def forget(self):
        for path in self.told.iterdir():
            path.unlink()

    def virtual_environment(self, **modules):
        """A Python with these modules among its packages."""
        place = self.folder / "env"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        (packages,) = place.glob("lib/python3*/site-packages")
        for name, text in modules.items():
            file = packages / f"{name}.py"
            file.parent.mkdir(exist_ok=True, parents=True)
            file.write_text(text)
        return place / "bin/python"

    def restarted(self, job, rank=0):
        """Kills a worker; what the workers of attempt 1 say, when the job has ended well."""
        os.kill(self.said(rank, 0)["pid"], signal.SIGKILL)
        second = [self.said(rank, 1) for rank in (0, 1)]
        code, self.out, self.err = job.finish()
        self.assertEqual(code, 0, self.err)
        job.wait_gone()
        return second

    def test_takes_the_place_of_a_killed_worker(self):
        job = self.begin()
        first = [self.said(rank, 0) for rank in (0, 1)]
        standbys = self.waiting(job)
        for rank in 0, 1:  # nobody takes a standby for the worker
            found = [pid for pid in job.children_of(job.agent()) if f"RANK={rank}".encode() in environment_of(pid)]
            self.assertEqual(found, [first[rank]["pid"]])
        second = self.restarted(job)
        self.assertEqual(sorted(one["pid"] for one in second), sorted(standbys))
        for before, after in zip(first, second):
            names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"
            self.assertLessEqual({f"{name}={after['env'][name]}" for name in names}, set(after["shown"]))
            self.assertEqual([after[key] for key in ("path", "argv", "file", "name")],
                             [before[key] for key in ("path", "argv", "file", "name")])
            changed = {name for name in before["env"] | after["env"] if before["env"].get(name) != after["env"].get(name)}
            self.assertLessEqual(changed, OF_AN_ATTEMPT)
            self.assertEqual(after["env"]["TORCHELASTIC_RESTART_COUNT"], "1")
            self.assertLessEqual(set(before["modules"]), set(after["modules"]))
        for text, stream in ("out", self.out), ("err", self.err):
            for rank in 0, 1:
                self.assertEqual(stream.count(f"{text} of {rank} 1\n"), 1)

    def test_its_output_goes_into_the_files_of_its_attempt(self):
        logs = self.folder / "logs"
        job = self.begin(f"--log-dir={logs}", "--redirects=1", "--tee=2")
        self.waiting(job)
        self.restarted(job)
        for rank in 0, 1:
            (file,) = logs.glob(f"*_*/attempt_1/{rank}/stdout.log")
            self.assertEqual(file.read_text(), f"out of {rank} 1\n")
            self.assertIn(f"[default{rank}]:err of {rank} 1\n", self.err)

    def test_restarts_again_and_again(self):
        job = self.begin(last=3)
        for attempt in range(3):
            standbys = self.waiting(job)
            os.kill(self.said(attempt % 2, attempt)["pid"], signal.SIGKILL)
            self.assertIn(self.said(0, attempt + 1)["pid"], standbys)
        code, _, err = job.finish()
        self.assertEqual(code, 0, err)
        job.wait_gone()
        told = [line for line in err.splitlines() if "lost" in line]
        self.assertEqual(len(told), 2, err)  # the last attempt does no step
        for rank, line in enumerate(told):
            self.assertRegex(line, rf"^ddprun: rank {rank} on \S+: killed by SIGKILL: detected \d.\d+, stopped \d.\d+, re-formed \d.\d+, "
                                   r"first line \d.\d+, first step \d.\d+; \d.\d+ s lost$")
            *stages, lost = map(float, re.findall(r"\d\.\d+", line))
            self.assertAlmostEqual(sum(stages), lost, delta=0.003)  # each is rounded

    def test_none_without_a_restart_to_come_or_where_it_is_off(self):
        jobs = []
        for number, flags in enumerate((["--standby=0"], ["--python-hook=0"], ["--max-restarts=0"], ["--standby=1"])):
            told = self.folder / f"told.{number}"
            told.mkdir()
            jobs.append((self.begin(*flags, told=told), {self.said(rank, 0)["pid"] for rank in (0, 1)}))
        # The last one was started last: where it has standbys, the others had the time for it too.
        self.waiting(jobs[-1][0])
        for job, workers in jobs[:-1]:
            self.assertEqual(set(job.children_of(job.agent())), workers)
        for job, _ in jobs:
            self.stop(job)

    def test_the_hook_is_invisible(self):
        facts = []
        for flags in (["--python-hook=0"], []):
            job = self.begin(*flags, last=0, PYTHONPATH=str(self.folder))
            self.assertEqual(job.finish()[0], 0)
            one = self.said(0, 0)
            for name in OURS | OF_AN_ATTEMPT:
                one["env"].pop(name, None)
            facts.append({key: one[key] for key in ("path", "modules", "env", "argv", "file", "name")})
        self.assertEqual(*facts)

    def test_the_users_own_customization_runs(self):
        names = ["sitecustomize", "usercustomize"] if site.ENABLE_USER_SITE else ["sitecustomize"]
        for name in names:
            (self.folder / f"{name}.py").write_text("import os, sys\nprint(__name__, __file__, os.environ.get('DDPRUN_HOOK'), "
                                                    "'hook' in str(sys.path), flush=True)\n")
        job = self.begin(last=0, workers=1, PYTHONPATH=str(self.folder))
        code, out, err = job.finish()
        self.assertEqual(code, 0, err)
        self.assertEqual(out.splitlines()[:len(names)], [f"{name} {self.folder}/{name}.py None False" for name in names])

    def test_started_cold_where_an_import_read_what_differs(self):
        python = self.virtual_environment(reads="import os\nATTEMPT = os.environ['TORCHELASTIC_RESTART_COUNT']\n")
        job = self.begin(imports="import reads\nprint(f'attempt {reads.ATTEMPT}\\n', end='')", python=python)
        standbys = self.waiting(job)
        second = self.restarted(job)
        self.assertTrue(set(standbys).isdisjoint(one["pid"] for one in second))
        self.assertEqual(self.out.count("attempt 1\n"), 2)

    def test_none_for_an_import_that_does_more_than_import(self):
        for why, text in {"an import has started a thread": "import threading, time\n"
                                                            "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n",
                          "an import has started a process": "import subprocess\nCHILD = subprocess.Popen(['sleep', '1000'])\n",
                          "an import has opened /dev/zero": "DEVICE = open('/dev/zero', 'rb')\n",
                          "ImportError: ": "import os, sys\nplace = f'{sys.argv[1]}/tried.{os.environ[\"RANK\"]}'\n"
                                           "if os.path.exists(place): os.remove(place); raise ImportError(place)\n"
                                           "open(place, 'w').close()\n"}.items():
            with self.subTest(why):
                job = self.begin(LOGLEVEL="INFO", imports="try: import does_more\nexcept ImportError: pass",
                                 python=self.virtual_environment(does_more=text))
                self.without_standbys(job, why)
                self.forget()

    def test_imports_a_namespace_package(self):
        python = self.virtual_environment(**{"space/inner": "VALUE = 1\n"})
        job = self.begin(imports="import space.inner", python=python)
        standbys = self.waiting(job)
        second = self.restarted(job)
        self.assertEqual(sorted(one["pid"] for one in second), sorted(standbys))

    def test_imports_see_what_the_script_has_set_and_its_first_line_does_not(self):
        python = self.virtual_environment(reads="import os\nVALUE = os.environ.get('PREPARED')\n",
                                          sets="import os\nos.environ['OF_AN_IMPORT'] = '1'\n")
        job = self.begin(imports="first = os.environ.get('PREPARED'), os.environ.get('HOME')\n"
                                 "os.environ['PREPARED'] = 'yes'\ndel os.environ['HOME']\nimport reads, sets\n"
                                 "print(f\"at first {first[0]} {first[1]} then {reads.VALUE} {os.environ['OF_AN_IMPORT']} {'HOME' in os.environ}\\n\", end='', flush=True)", python=python)
        standbys = self.waiting(job)
        second = self.restarted(job)
        self.assertEqual(sorted(one["pid"] for one in second), sorted(standbys))
        self.assertEqual(self.out.count(f"at first None {os.environ.get('HOME')} then yes 1 False\n"), 4)

    def test_an_import_may_copy_all_variables(self):
        python = self.virtual_environment(copies="import os\nALL = [os.environ.copy(), {**os.environ}, dict(os.environ), list(os.environ.items())]\n")
        job = self.begin(imports="import copies", python=python)
        standbys = self.waiting(job)
        second = self.restarted(job)
        self.assertEqual(sorted(one["pid"] for one in second), sorted(standbys))

    def test_an_import_may_write_torchs_module(self):
        """As torch 2.9 does, in a folder that each process makes for itself."""
        code = (f"import sys, tempfile\nFOLDER = tempfile.mkdtemp(dir={str(self.folder)!r})\nsys.path.append(FOLDER)\n"
                "open(FOLDER + '/_remote_module_non_scriptable.py', 'x').close()\nimport _remote_module_non_scriptable\n")
        job = self.begin(imports="import writes", python=self.virtual_environment(writes=code))
        standbys = self.waiting(job)
        self.assertEqual(sorted(one["pid"] for one in self.restarted(job)), sorted(standbys))

    def test_none_where_a_package_imports_the_users_own(self):
        (self.folder / "own_settings.py").write_text("VALUE = 5\n")
        python = self.virtual_environment(asks="try:\n  from own_settings import VALUE\nexcept ImportError:\n  VALUE = None\n")
        job = self.begin(LOGLEVEL="INFO", imports="import asks\nprint(f'value {asks.VALUE}\\n', end='')", python=python)
        self.without_standbys(job, "a package imports own_settings, which is the user's\n")
        self.assertEqual(self.out.count("value 5\n"), 4)

    def without_standbys(self, job, why):
        """Restarts the workers when the job has said that both have no standby. Needs
        LOGLEVEL=INFO."""
        said = self.read_until(job.process.stderr.fileno(), f" has no standby: {why}", times=2)
        before = job.children_of(job.agent())
        second = self.restarted(job)
        self.err = said + self.err
        self.assertTrue(set(before).isdisjoint(one["pid"] for one in second))
        self.assertEqual(self.err.count(" has no standby: "), 2)

    def test_counts_the_steps_of_optimizers(self):
        python = self.virtual_environment(**{
            "torch/__init__": "from torch import compiler\n", "torch/compiler": "is_dynamo_compiling = lambda: False\n",
            "torch/optim/__init__": "", "torch/optim/optimizer": "HOOKS = []\ndef register_optimizer_step_post_hook(hook):\n  HOOKS.append(hook)\n  return hook\n",
            "half": "import json.tool\nraise ImportError('as ever')\n"})
        job = self.begin("--max-restarts=2", imports="import torch.optim.optimizer\ntry: import half\nexcept ImportError: pass\n"
                         "for hook in torch.optim.optimizer.HOOKS: hook(None, (), {})", python=python)
        standbys = self.waiting(job)  # though the import of `half` fails again
        self.assertEqual(sorted(one["pid"] for one in self.restarted(job)), sorted(standbys))

    def test_the_last_import_may_import_others(self):
        """No import comes after it, and the steps are not those of an optimizer."""
        python = self.virtual_environment(outer="import inner\n", inner="VALUE = 1\n")
        job = self.begin(imports="import mmap\nimport outer", python=python)
        standbys = self.waiting(job)
        self.assertEqual(sorted(one["pid"] for one in self.restarted(job)), sorted(standbys))

    def test_a_forked_child_leaves_the_workers_notes_alone(self):
        python = self.virtual_environment(in_child="VALUE = 1\n", in_worker="VALUE = 2\n")
        job = self.begin(imports="child = os.fork()\nif child == 0:\n  os.environ['OF_A_CHILD'] = '1'\n  import in_child, base64\n  os._exit(0)\n"
                                 "os.waitpid(child, 0)\nimport in_worker, bisect", python=python)
        notes = b"".join(path.read_bytes() for path in pathlib.Path("/dev/shm").glob(f"ddprun_scratch-*-{job.pid}-*/pages"))
        self.assertIn(b"\0+in_worker\0", notes)
        self.assertNotIn(b"in_child", notes)
        self.assertNotIn(b"OF_A_CHILD", notes)
        standbys = self.waiting(job)
        self.assertEqual(sorted(one["pid"] for one in self.restarted(job)), sorted(standbys))

    def test_a_worker_that_ends_well_when_asked_ends_no_standby(self):
        job = self.begin(imports="import signal\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(0))")
        standbys = self.waiting(job)
        self.assertEqual(sorted(one["pid"] for one in self.restarted(job)), sorted(standbys))

    def test_where_nothing_names_the_language(self):
        job = self.begin(imports="import copies", python=self.virtual_environment(copies="import os\nALL = dict(os.environ)\n"), LANG="",
                         LC_ALL="", LC_CTYPE="")
        standbys = self.waiting(job)
        self.assertEqual(sorted(one["pid"] for one in self.restarted(job)), sorted(standbys))

    def test_goes_on_where_the_imports_change(self):
        python = self.virtual_environment(early="print('early\\n', end='', flush=True)\n", late="print('late\\n', end='', flush=True)\n")
        job = self.begin(imports="__import__('late' if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' else 'early')", python=python)
        standbys = self.waiting(job)
        second = self.restarted(job)
        self.assertEqual(sorted(one["pid"] for one in second), sorted(standbys))
        # The standbys' output is printed when they are let go.
        self.assertEqual([self.out.count(f"{word}\n") for word in ("early", "late")], [4, 2])

    def test_never_runs_a_file_of_the_users(self):
        (self.folder / "own.py").write_text("import os\nprint('own in', os.getpid(), flush=True)\n")
        job = self.begin(imports="import own")
        standbys = self.waiting(job)
        second = self.restarted(job)
        self.assertEqual(sorted(one["pid"] for one in second), sorted(standbys))
        self.assertEqual(self.out.count("own in"), 4)  # once in each worker of each attempt

    def test_one_that_hangs_or_was_killed_is_replaced_by_a_cold_start(self):
        for signo in signal.SIGSTOP, signal.SIGKILL:
            with self.subTest(signal=signo.name):
                job = self.begin()
                standbys = self.waiting(job)
                for pid in standbys:
                    os.kill(pid, signo)
                second = self.restarted(job)
                self.assertTrue(set(standbys).isdisjoint(one["pid"] for one in second))
                self.forget()

    def test_ends_with_the_job(self):
        job = self.begin()
        self.waiting(job)
        self.stop(job)

    def test_ends_with_a_killed_agent(self):
        job = self.begin()
        self.waiting(job)
        os.kill(job.agent(), signal.SIGKILL)
        job.finish()
        job.wait_gone()
        self.assertEqual(list(pathlib.Path("/dev/shm").glob(f"ddprun_scratch-*-{job.pid}-*")), [])

    def wrapper(self, name, text):
        path = self.script(f'#!/bin/sh\n{text} "$@"\n', name)
        os.chmod(path, 0o755)
        return path

    def test_none_for_a_program_that_python_is_only_called(self):
        for text in sys.executable, f"exec {sys.executable} -I":
            with self.subTest(text):
                job = self.begin(python=self.wrapper("python", text), last=2)
                first = {self.said(rank, 0)["pid"] for rank in (0, 1)}
                # Without a first line of the hook nothing is warmed. The plan looks no more when
                # the step is done.
                other = self.folder / f"other.{job.pid}"
                other.mkdir()
                control = self.begin(told=other)
                self.waiting(control)
                self.assertEqual(len(job.children_of(job.agent())), 2)
                self.assertEqual(job.standbys(), [])
                self.stop(control)
                os.kill(min(first), signal.SIGKILL)
                self.told = self.folder / "told"
                self.said(0, 1)
                self.stop(job)
                self.forget()

    def test_workers_that_are_no_plain_python_run_as_without_it(self):
        wrapper = self.wrapper("wrapper.sh", '"$PYTHON_EXEC"')
        for command in (sys.executable, "-I"), (sys.executable, "-S"), (sys.executable, "-E"), (wrapper,):
            said = []
            for hook in 0, 1:
                with self.subTest(command=command, hook=hook):
                    script = self.script(WORKER.replace("{imports}", ""), "worker.py")
                    job = self.start("--nproc-per-node=2", "--max-restarts=1", f"--python-hook={hook}", "--no-python", *command, script,
                                     self.told, 1, env=with_variables(OMP_NUM_THREADS="1") | {"PYTHON_EXEC": sys.executable})
                    self.said(1, 0)
                    second = self.restarted(job)
                    said.append([[one[key] for key in ("path", "modules", "argv")] for one in second])
                    self.forget()
            self.assertEqual(*said)

    def test_the_hook_is_laid_for_a_python_program_only(self):
        for program, laid in ((["--no-python", "/bin/sh", "-c", 'folder=/${DDPRUN_PAGE#*/}; ls "${folder%/pages}"'], False),
                              ([self.script("import os\nfolder = os.path.dirname(os.environ['DDPRUN_PAGE'].rpartition(':')[2])\n"
                                            "print(*sorted(os.listdir(folder)))\n", "ls.py")], True)):
            with self.subTest(laid=laid):
                _, out, _ = self.start("--nproc-per-node=1", *program).finish()
                self.assertEqual("hook" in out, laid, out)
                self.assertIn("pages", out)

    def test_flags_are_checked(self):
        self.refused(2, ["--standby=2", "auto", "0", "1"], "--standby=2", "/bin/true")
        self.refused(2, ["--python-hook=x", "0", "1"], "--python-hook=x", "/bin/true")


if __name__ == "__main__":
    main()
