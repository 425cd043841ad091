#!/usr/bin/env python3
"""ddprun.elastic_launch(), and the takeover of torch's launchers. With the package of the source
tree. A torch of a few lines stands for the real one; one test has that."""

import contextlib
import io
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import types
import unittest

from support import DDPRUN, DEADLINE_S, PACKAGE, ROOT, FolderTest, run, run_tests, variables

sys.path.insert(0, str(PACKAGE))
sys.dont_write_bytecode = True

from ddprun import DefaultLogsSpecs, LaunchConfig  # noqa: E402
from ddprun._launch_config import config_flags, handled_signals  # noqa: E402
from ddprun._process import _handed_on  # noqa: E402

# The part of torch that ddprun uses: two classes of errors, and the module of the takeover.
ERRORS = """
class ProcessFailure:
    def __init__(self, local_rank, pid, exitcode, error_file):
        import json, os
        self.local_rank, self.pid, self.exitcode, self.timestamp = local_rank, pid, exitcode, 7
        self.error_file = error_file if os.path.isfile(error_file) else "<N/A>"
        self.message = json.load(open(error_file))["message"] if os.path.isfile(error_file) else ""
class ChildFailedError(Exception):
    def __init__(self, name, failures):
        self.name, self.failures = name, failures
        super().__init__(name)
    def get_first_failure(self):
        return min(self.failures.items(), key=lambda item: item[1].timestamp)
"""
SIGNALS = """
class SignalException(Exception):
    def __init__(self, message, sigval):
        super().__init__(message)
        self.sigval = sigval
"""
LAUNCHER = """
def launch_agent(config, entrypoint, args, health_check_server=None):
    return "torch's agent"
class elastic_launch:
    def __init__(self, config, entrypoint):
        self.call = config, entrypoint
    def __call__(self, *args):
        return launch_agent(*self.call, list(args), health_check_server=None)  # torch 2.14's form
"""
SCRIPT = """
import os, sys, time
import ddprun
from ddprun import LaunchConfig, elastic_launch

def square(base): return int(os.environ["RANK"]) ** 2 + base, "DDPRUN_JOB" in os.environ
def fails(how):
    if os.environ["RANK"] == "1": how()
    time.sleep(1000)
def error(): raise KeyError("no such key")
def dies(): os.kill(os.getpid(), 9)
def nested(): return sorted(elastic_launch(config(1), square)(1))
def saves(fifo, saved):
    try:
        with open(fifo, "w") as file: file.write("x")  # the signal may come at once
        time.sleep(1000)
    finally:
        time.sleep(0.3)
        open(saved, "w").write("saved")
def config(workers=2, **more):
    return LaunchConfig(1, 1, workers, rdzv_backend="c10d", rdzv_endpoint="localhost:0", **{"max_restarts": 0, **more})

if __name__ == "__main__":
    BODY
"""
REDUCE = """
import os, sys
import torch, torch.distributed as dist
from torch.distributed.launcher import LaunchConfig, elastic_launch

def total():
    dist.init_process_group("gloo")
    value = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(value)
    dist.destroy_process_group()
    return value.item(), "DDPRUN_JOB" in os.environ
def fails():
    if os.environ["RANK"] == "1": raise KeyError("no such key")

if __name__ == "__main__":
    config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0)
    print(elastic_launch(config, total)(), flush=True)
    elastic_launch(config, fails)()
"""


def torch_of_a_few_lines(folder):
    """Makes the package torch in the folder."""
    for module, text in {"elastic/multiprocessing/errors": ERRORS, "elastic/multiprocessing/api": SIGNALS, "launcher/api": LAUNCHER}.items():
        path = folder / "torch" / "distributed" / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for package in ("", "distributed", "distributed/elastic", "distributed/elastic/multiprocessing"):
        (folder / "torch" / package / "__init__.py").touch()
    (folder / "torch/distributed/launcher/__init__.py").write_text("from .api import elastic_launch, launch_agent\n")


class Flags(unittest.TestCase):
    def flags(self, **fields):
        """Returns the flags that these fields add to those of a plain config."""
        plain = config_flags(LaunchConfig(1, 1, 2, rdzv_backend="c10d"))
        return set(config_flags(LaunchConfig(**{"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "rdzv_backend": "c10d", **fields}))) - set(plain)

    def test_each_field_is_a_flag(self):
        for fields, flags in (
            ({"max_nodes": 3}, {"--nnodes=1:3"}),
            ({"nproc_per_node": 4}, {"--nproc-per-node=4"}),
            ({"run_id": "x"}, {"--rdzv-id=x"}),
            ({"role": "trn"}, {"--role=trn"}),
            ({"rdzv_endpoint": "h:1"}, {"--rdzv-endpoint=h:1"}),
            ({"rdzv_backend": "static", "rdzv_configs": {"rank": 1}}, {"--rdzv-backend=static", "--node-rank=1"}),
            ({"rdzv_backend": "static", "rdzv_timeout": 4}, {"--rdzv-backend=static", "--node-rank=0", "--rdzv-conf=timeout=4"}),
            ({"rdzv_configs": {"timeout": 900, "is_host": True, "join_timeout": 4}}, {"--rdzv-conf=is_host=true,join_timeout=4"}),
            ({"max_restarts": 1}, {"--max-restarts=1"}),
            ({"monitor_interval": 1}, {"--monitor-interval=1"}),
            ({"log_line_prefix_template": "${rank}:"}, {"--log-line-prefix-template=${rank}:"}),
            ({"local_addr": "10.0.0.1"}, {"--local-addr=10.0.0.1"}),
            ({"event_log_handler": "console"}, {"--event-log-handler=console"}),
            ({"numa_options": "node"}, {"--numa-binding=node"}),
            ({"signals_to_handle": "SIGTERM"}, {"--signals-to-handle=SIGTERM"}),
            ({"duplicate_stdout_filters": ["a,b", "c"]}, {"--duplicate-stdout-filters=a,,b,c"}),
            ({"duplicate_stderr_filters": ["a"]}, {"--duplicate-stderr-filters=a"}),
            ({"virtual_local_rank": True}, {"--virtual-local-rank"}),
            ({"shutdown_timeout": 2}, {"--shutdown-timeout=2"}),
            ({"logs_specs": DefaultLogsSpecs(redirects=3, tee={0: 1, 1: 2}, local_ranks_filter={1, 0})},
             {"--redirects=3", "--tee=0:1,1:2", "--local-ranks-filter=0,1"}),
            ({"start_method": "forkserver"}, set()),
        ):
            self.assertEqual(self.flags(**fields), flags)

    def test_what_cannot_be_honoured_is_refused_by_name(self):
        class Own(DefaultLogsSpecs):
            def reify(self, envs):
                return envs

        for fields, said in (
            ({"metrics_cfg": {"a": "b"}}, "LaunchConfig.metrics_cfg={'a': 'b'}: expected none"),
            ({"start_method": "thread"}, "LaunchConfig.start_method='thread': expected spawn, fork or forkserver"),
            ({"rdzv_configs": {"a": "b,c"}}, "LaunchConfig.rdzv_configs['a']='b,c': expected a value without a comma"),
            ({"logs_specs": Own()}, "expected DefaultLogsSpecs"),
        ):
            with self.assertRaises((TypeError, ValueError)) as caught:
                self.flags(**fields)
            self.assertIn(said, str(caught.exception))
        with self.assertRaisesRegex(TypeError, "config=3: expected a LaunchConfig"):
            config_flags(3)

    def test_a_field_of_a_later_torch_must_have_its_default(self):
        import dataclasses

        later = dataclasses.make_dataclass("Later", [("new_field", int, 5)], bases=(LaunchConfig,))
        config_flags(later(1, 1, 2))
        made = dataclasses.make_dataclass("Made", [("new_list", list, dataclasses.field(default_factory=list))], bases=(LaunchConfig,))
        config_flags(made(1, 1, 2))
        with self.assertRaisesRegex(ValueError, r"LaunchConfig.new_list=\[1\]: ddprun does not know this field; expected \[\]"):
            config_flags(made(1, 1, 2, new_list=[1]))
        with self.assertRaisesRegex(ValueError, "LaunchConfig.new_field=6: ddprun does not know this field; expected 5"):
            config_flags(later(1, 1, 2, new_field=6))

    def test_signals_are_those_of_the_field(self):
        numbers = handled_signals(LaunchConfig(1, 1, 1, signals_to_handle="TERM, SIGUSR1,NOSIG,SIGKILL"))
        self.assertEqual(numbers, sorted([signal.SIGTERM, signal.SIGUSR1]))


class HandingOn(unittest.TestCase):
    """Signals around the start of ddprun, with a process that notes what it is sent."""

    def sent(self, during_the_start, while_it_hands_on=None):
        sent = []

        def note(number):
            sent.append(number)
            if while_it_hands_on and len(sent) == 1:
                os.kill(os.getpid(), while_it_hands_on)

        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, signal.SIG_DFL))
        self.addCleanup(signal.signal, signal.SIGUSR2, signal.signal(signal.SIGUSR2, signal.SIG_DFL))
        received = []
        with _handed_on([signal.SIGUSR1, signal.SIGUSR2], received) as hand_to:
            os.kill(os.getpid(), during_the_start)
            hand_to(types.SimpleNamespace(send_signal=note))
        return sent, received

    def test_each_is_sent_once(self):
        self.assertEqual(self.sent(signal.SIGUSR1), ([signal.SIGUSR1], [signal.SIGUSR1]))
        both = [signal.SIGUSR1, signal.SIGUSR2]
        self.assertEqual(self.sent(*both), (both, both))

    def test_a_handler_that_is_not_pythons_stays(self):
        before = signal.getsignal
        self.addCleanup(setattr, signal, "getsignal", before)
        signal.getsignal = lambda number: None
        with _handed_on([signal.SIGUSR1], []):
            self.assertEqual(before(signal.SIGUSR1), signal.SIG_DFL)


class ElasticLaunch(FolderTest):
    def setUp(self):
        super().setUp()
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "ddprun").symlink_to(DDPRUN)
        torch_of_a_few_lines(self.folder)
        self.env = variables(PATH=f"{self.folder / 'bin'}:{os.environ['PATH']}", PYTHONPATH=f"{PACKAGE}:{self.folder}",
                             TMPDIR=str(self.temporary), PYTHONDONTWRITEBYTECODE="1", PET_QUIET="1")

    def said(self, body, **run_arguments):
        return run(sys.executable, self.file("train.py", SCRIPT.replace("BODY", body)), env=self.env, cwd=self.folder, **run_arguments)

    def failure(self, call):
        """Returns the printed text of the error that `call` raises."""
        return self.said(f"""
    try: {call}
    except Exception as error:
        print("\\nKIND", type(error).__name__, "\\nTEXT", error)
        if hasattr(error, "failures"):
            rank, first = error.get_first_failure()
            print("RANK", rank, first.local_rank, first.exitcode, "\\nSAID", first.message, "\\nFILE", first.error_file, "\\nALL", sorted(error.failures))""")

    def test_returns_the_result_of_each_rank(self):
        said = self.said("print(elastic_launch(config(), square)(5), 'torch' in sys.modules)")
        self.assertIn("{0: (5, True), 1: (6, True)} False", said)
        self.assertEqual(list(self.temporary.iterdir()), [])

    def test_programs_return_nothing(self):
        said = self.said("""
    print(elastic_launch(config(1), "/bin/sh")("-c", "echo rank $RANK"))
    print(elastic_launch(config(1), sys.executable)("-u", "-c", "print('python', 5)"))
    open("own.py", "w").write("import sys; print('script', sys.argv[1:])")
    print(elastic_launch(config(1), sys.executable)("-u", "own.py", "--x", "${local_rank}"))
    print(elastic_launch(config(1), sys.executable)("-u", "-m", "own", 3))""")
        self.assertEqual(sorted(said.splitlines()), sorted(["rank 0", "python 5", "script ['--x', '0']", "script ['3']", *["{}"] * 4]))

    def test_a_failure_is_torchs_error(self):
        self.env["PET_ERROR_REPORT"] = str(self.folder / "report.json")
        said = self.failure("elastic_launch(config(), fails)(error)")
        self.assertRegex(said, r"KIND ChildFailedError \nTEXT fails\nRANK 1 1 1 \nSAID .*KeyError: 'no such key'.* \nFILE .*error.json \nALL \[0, 1\]")
        self.assertEqual(json.loads((self.folder / "report.json").read_text())["root_cause"]["rank"], 1)
        (logs,) = self.temporary.iterdir()
        self.assertTrue(list(logs.rglob("1/error.json")), "the file that the error names is gone")

    def test_a_silent_death_has_its_signal(self):
        self.assertRegex(self.failure("elastic_launch(config(), fails)(dies)"), r"RANK 1 1 -9 \nSAID .*SIGKILL.* \nFILE <N/A>")

    def test_without_a_worker_to_blame_it_is_our_own_error(self):
        self.assertRegex(self.failure("elastic_launch(config(0), square)(5)"), "KIND Failed \nTEXT .*--nproc-per-node=0: ")
        self.assertRegex(self.failure("elastic_launch(LaunchConfig(1, 1, 1), square)(5)"), "KIND Failed \nTEXT .*rdzv-")
        self.assertRegex(self.failure("elastic_launch(config(), 5)()"), "KIND TypeError \nTEXT entrypoint=5: expected a function or ")
        self.assertEqual(list(self.temporary.iterdir()), [], "empty folders of failures stay")

    def test_a_folder_of_the_users_stays_and_torchs_empty_one_goes(self):
        own, torchs = self.temporary / "torchelastic_mine", self.temporary / "torchelastic_x"
        for folder in own, torchs:
            folder.mkdir()
        (own / "notes").write_text("mine")
        for folder in own, torchs:
            self.said(f"elastic_launch(config(1, logs_specs=ddprun.DefaultLogsSpecs({str(folder)!r})), '/bin/true')()")
        self.assertEqual([path.name for path in self.temporary.iterdir()], ["torchelastic_mine"])
        self.assertEqual((own / "notes").read_text(), "mine")

    def test_a_launch_in_a_worker(self):
        self.assertIn("{0: [0]}", self.said("print(elastic_launch(config(1), nested)())"))

    def test_switches_of_the_callers_variables_are_not_applied_twice(self):
        self.env |= {"PET_STANDALONE": "1", "PET_MODULE": "1", "PET_NPROC_PER_NODE": "7"}
        self.assertIn("{0: (1, True), 1: (2, True)}", self.said("print(elastic_launch(config(), square)(1))"))

    def test_a_forked_call_does_not_import_the_main_module_again(self):
        python = ROOT / ".venv-wheel" / "bin" / "python"
        if not list((ROOT / ".venv-wheel").glob("lib/python3*/site-packages/cloudpickle/__init__.py")):
            self.skipTest("no cloudpickle in .venv-wheel here")
        script = self.file("bare.py", "import ddprun\nk = 4\ndef f(): return k\nprint(ddprun.elastic_launch(ddprun.LaunchConfig("
                           "1, 1, 1, rdzv_backend='c10d', rdzv_endpoint='localhost:0', start_method='fork'), f)())\n")
        self.assertEqual("{0: 4}\n", run(python, script, env=self.env))

    def test_a_signal_is_handed_on_and_the_workers_may_save(self):
        fifo, saved = self.folder / "fifo", self.folder / "saved"
        os.mkfifo(fifo)
        script = self.file("train.py", SCRIPT.replace("BODY", f"elastic_launch(config(1), saves)({str(fifo)!r}, {str(saved)!r})"))
        job = subprocess.Popen([sys.executable, script], env=self.env, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.addCleanup(job.kill)
        with open(fifo) as file:
            file.read(1)
        job.send_signal(signal.SIGINT)
        self.assertIn(f"SignalException: Process {job.pid} got signal: 2", job.communicate(timeout=DEADLINE_S)[1])
        self.assertEqual(saved.read_text(), "saved")


class OldFinder(unittest.TestCase):
    def test_a_finder_without_find_spec_is_passed_over(self):
        code = ("import sys, ddprun._takeover; sys.meta_path.insert(1, object())\n"
                "print(sys.meta_path[0].find_spec('torch.distributed.launcher.api', []))")
        self.assertEqual(run(sys.executable, "-B", "-c", code, env=variables(PYTHONPATH=str(PACKAGE))), "None\n")


class Takeover(FolderTest):
    """A virtual environment reads ddprun.pth as it does with the wheel in it."""

    def setUp(self):
        super().setUp()
        run(sys.executable, "-m", "venv", "--without-pip", self.folder / "venv")
        self.python = self.folder / "venv" / "bin" / "python"
        (self.folder / "venv" / "bin" / "ddprun").symlink_to(DDPRUN)
        self.env = variables(PATH=f"{self.python.parent}:{os.environ['PATH']}", PYTHONDONTWRITEBYTECODE="1", PET_QUIET="1",
                             OMP_NUM_THREADS="1", RES_OPTIONS="timeout:1 attempts:1")

    def see(self, *folders):
        lines = "".join(f"import site; site.addsitedir({str(folder)!r})\n" for folder in [*folders, PACKAGE])
        next((self.folder / "venv").glob("lib/python3*/site-packages")).joinpath("here.pth").write_text(lines)

    def test_off_nothing_is_imported_and_on_torchs_agent_is_ddprun(self):
        torch_of_a_few_lines(self.folder)
        self.see(self.folder)
        code = ("import sys; before = 'ddprun' in sys.modules\nfrom torch.distributed.launcher import elastic_launch\n"
                "from ddprun import LaunchConfig\n"
                "config = LaunchConfig(1, 1, 1, rdzv_backend='c10d', rdzv_endpoint='localhost:0')\n"
                "print(before, elastic_launch(config, '/bin/sh')('-c', 'test -n \"$DDPRUN_JOB\" && echo in a job'))")
        for value, said in ((None, "False torch's agent\n"), ("0", "False torch's agent\n"), ("1", "in a job\nTrue {}\n")):
            env = self.env if value is None else self.env | {"DDPRUN_TAKES_OVER": value}
            self.assertEqual(run(self.python, "-c", code, env=env), said)

    def test_the_real_torch(self):
        packages = next((ROOT / ".venv").glob("lib/python3*/site-packages"), pathlib.Path("."))
        if not (packages / "torch" / "__init__.py").exists():
            self.skipTest("no PyTorch in .venv here")
        self.see(packages)
        env = self.env | {"DDPRUN_TAKES_OVER": "1", "TMPDIR": str(self.folder)}
        said = run(self.python, self.file("reduce.py", REDUCE), env=env, expect=1)
        self.assertIn("{0: (3.0, True), 1: (3.0, True)}", said)
        self.assertRegex(said, r"(?s)ChildFailedError: .*fails FAILED.*rank +: 1.*exitcode +: 1.*error_file: /.*KeyError: 'no such key'")


class CompareLaunchers(unittest.TestCase):
    """The command of tests/trainers, with jobs that have ended already."""

    COMMAND = ROOT / "tests" / "trainers" / "compare_launchers"

    def differences(self, ours, after_a_failure=(1, "", "ChildFailedError\nValueError: planned")):
        """Returns what compare() finds where torch's agent ended well."""
        command = runpy.run_path(str(self.COMMAND))
        ends = iter([(0, "launcher=torchrun\nfinal_loss=0.5\n", ""), ours, after_a_failure])

        ended = types.SimpleNamespace(run=lambda row, with_ddprun, fail: next(ends))
        with contextlib.redirect_stdout(io.StringIO()):
            return command["compare"](ended, command["Row"]("row", [], []), True)

    def test_finds_what_differs(self):
        self.assertEqual(self.differences((0, "launcher=ddprun\nfinal_loss=0.5\n", "")), [])
        for ours, said in (
            ((0, "launcher=ddprun\nfinal_loss=0.6\n", ""), "row: losses 0.5 and 0.6"),
            ((0, "launcher=torchrun\nfinal_loss=0.5\n", ""), "row: exit code 0, launcher torchrun, expected ddprun: "),
            ((1, "", "died"), "row: exit code 1, launcher none, expected ddprun: died"),
        ):
            self.assertIn(said, self.differences(ours))
        well = 0, "launcher=ddprun\nfinal_loss=0.5\n", ""
        self.assertEqual(self.differences(well, (0, "", "")), ["row: after a failure, exit code 0: "])
        self.assertEqual(self.differences(well, (1, "", "KeyError")), ["row: after a failure, exit code 1: KeyError"])

    def test_refuses_bad_input_in_one_line(self):
        for words, said in ((["--only=x"], "--only=x: expected a part of accelerate launch, "), (["--python=/nowhere"], "--python=/nowhere: expected a program")):
            self.assertIn(said, run(sys.executable, "-B", self.COMMAND, "--ddprun=/bin/true", *words, expect=2).splitlines()[-1])


if __name__ == "__main__":
    run_tests()
