#!/usr/bin/env python3
"""ddprun.launch(): results, failures, main modules of each kind, what is left behind. With the
package of the source tree."""

import json
import os
import signal
import subprocess
import sys
import unittest

from support import DDPRUN, PACKAGE, DEADLINE_S, ROOT, FolderTest, run, run_tests, variables

# Workers import the main module, so this one says when it is the one of the user.
SCRIPT = """
import os, sys, time
import ddprun

class Point:
    def __init__(self, x): self.x = x

def square(base): return int(os.environ["RANK"]) ** 2 + base
def point(x): return Point(x)
def argv(): return sys.argv
def fails():
    if os.environ["RANK"] == "1": raise KeyError("no such key")
    time.sleep(1000)
def dies(): os.kill(os.getpid(), 9)
def returns_a_lock():
    import threading
    return threading.Lock()
def returns(size): return b"x" * size
def once(folder):
    mark = os.path.join(folder, "mark-" + os.environ["RANK"])
    if os.environ["RANK"] == "1" and not os.path.exists(mark):
        open(mark, "w").close()
        sys.exit(3)
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def leaves(code): sys.exit(code)
def waits(fifo):
    with open(fifo, "w") as file: file.write("x")
    time.sleep(1000)
def saves(fifo, saved):
    try: waits(fifo)
    finally:
        time.sleep(1)
        open(saved, "w").write("saved")
def fails_inside():
    try: ddprun.launch(leaves, (7,), nproc_per_node=1, flags=["--quiet"])
    except ddprun.Failed: raise ValueError("after it")
def nested(): return sorted(ddprun.launch(square, (1,), nproc_per_node=2, flags=["--quiet"]).items())

if __name__ == "__main__":
    BODY
"""
REDUCE = """
import ddprun, torch
import torch.distributed as dist

def total():
    dist.init_process_group("gloo")
    value = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(value)
    dist.destroy_process_group()
    return value.item()

if __name__ == "__main__":
    print(ddprun.launch(total, nproc_per_node=2, flags=["--quiet"]))
"""


class Launch(FolderTest):
    def setUp(self):
        super().setUp()
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "ddprun").symlink_to(DDPRUN)
        self.env = variables(PATH=f"{self.folder / 'bin'}:{os.environ['PATH']}", PYTHONPATH=str(PACKAGE), TMPDIR=str(self.temporary),
                             PYTHONDONTWRITEBYTECODE="1")

    def tearDown(self):
        self.assertEqual(list(self.temporary.iterdir()), [], "something is left in the temporary folder")

    def script(self, body, name="train.py"):
        return self.file(name, SCRIPT.replace("BODY", body))

    def said(self, body, **run_arguments):
        return run(sys.executable, self.script(body), env=self.env, cwd=self.folder, **run_arguments)

    def failed(self, call):
        """Returns the printed text of the Failed that `call` raises, line by line."""
        return self.said(f"""
    try: {call}
    except Exception as error: print("\\nKIND", type(error).__name__, "\\nTEXT", error, "\\nRANK", getattr(error, "rank", "-"),
                                     "\\nTRACE", repr(getattr(error, "traceback", "-")), "\\nREPORT", getattr(error, "report", "-"))""")

    def test_returns_the_result_of_each_rank(self):
        self.assertIn("{0: 5, 1: 6, 2: 9}", self.said("print(ddprun.launch(square, (5,), nproc_per_node=3, flags=['--quiet']))"))

    def test_results_may_be_of_the_scripts_own_classes(self):
        self.assertIn("IS 7", self.said("print('IS', ddprun.launch(point, (7,), nproc_per_node=1)[0].x)"))

    def test_workers_have_the_callers_argv(self):
        script = self.script("print(ddprun.launch(argv, nproc_per_node=1))")
        self.assertIn(f"{{0: ['{script}', '--x']}}", run(sys.executable, script, "--x", env=self.env))

    def test_a_module_that_m_runs(self):
        (self.folder / "pack").mkdir()
        self.script("print(ddprun.launch(square, (5,), nproc_per_node=2, flags=['--quiet']))", "pack/train.py")
        self.assertIn("{0: 5, 1: 6}", run(sys.executable, "-m", "pack.train", env=self.env, cwd=self.folder))

    def test_a_failure_has_rank_traceback_and_report(self):
        said = self.failed("ddprun.launch(fails, nproc_per_node=2)")
        self.assertRegex(said, r"KIND Failed \nTEXT rank 1: KeyError: 'no such key'\n")
        self.assertRegex(said, r"\nRANK 1 \nTRACE 'Traceback .*in fails\\n.*KeyError")
        self.assertRegex(said, r"\nREPORT \{.*'root_cause'")
        self.assertNotIn("_worker.py", said.partition("\nTRACE")[2].partition("\nREPORT")[0])

    def test_a_silent_death_has_its_signal(self):
        self.assertRegex(self.failed("ddprun.launch(dies, nproc_per_node=1)"), r"KIND Failed \nTEXT rank 0: .*SIGKILL")

    def test_a_function_may_end_by_sys_exit(self):
        self.assertIn("{0: None, 1: None}", self.said("print(ddprun.launch(leaves, (0,), nproc_per_node=2, flags=['--quiet']))"))
        self.assertRegex(self.failed("ddprun.launch(leaves, (7,), nproc_per_node=1)"), r"KIND Failed \nTEXT rank 0: exit code 7 \nRANK 0")

    def test_a_refused_flag_is_no_workers_failure(self):
        said = self.failed("ddprun.launch(square, (1,), nproc_per_node='zero')")
        self.assertRegex(said, r"KIND Failed \nTEXT .*--nproc-per-node=zero: expected .* \nRANK None \nTRACE '' \nREPORT \{\}")

    def test_a_result_that_cannot_be_pickled(self):
        self.assertRegex(self.failed("ddprun.launch(returns_a_lock, nproc_per_node=1)"),
                         "TEXT rank 0: TypeError: what rank 0 returned cannot be pickled: ")

    def test_results_are_bounded(self):
        said = self.failed("import ddprun._launch as own; own.MAX_RESULT_BYTES = 1000; ddprun.launch(returns, (2000,), nproc_per_node=1)")
        self.assertRegex(said, r"TEXT rank 0: ValueError: what rank 0 returned has 20\d\d bytes, expected at most 1000: save it")

    def test_results_are_those_of_the_last_attempt(self):
        said = self.said(f"print(ddprun.launch(once, ({str(self.folder)!r},), nproc_per_node=2, flags=['--max-restarts=1', '--standby=0']))")
        self.assertIn("{0: 1, 1: 1}", said)

    def test_flags_that_it_cannot_take(self):
        self.assertIn("TEXT flags: --error-report=x: launch() has the report itself", self.failed("ddprun.launch(argv, flags=['--error-report=x'])"))
        self.assertIn("TEXT flags='--quiet': expected a list", self.failed("ddprun.launch(argv, flags='--quiet')"))

    def test_a_script_without_the_guard_is_told_so(self):
        script = self.file("bare.py", "import ddprun\ndef f(): return 1\nprint(ddprun.launch(f, nproc_per_node=1))\n")
        self.assertIn('call it below if __name__ == "__main__":', run(sys.executable, script, env=self.env, expect=1))

    def test_a_launch_in_a_worker(self):
        self.assertIn("{0: [(0, 1), (1, 2)]}", self.said("print(ddprun.launch(nested, nproc_per_node=1))"))

    def test_a_lambda_without_cloudpickle_is_refused_in_one_line(self):
        said = run(sys.executable, "-S", self.script("ddprun.launch(lambda: 1, nproc_per_node=1)"), env=self.env, expect=1)
        self.assertRegex(said.splitlines()[-1], "^TypeError: ddprun: <lambda> and .*; pip install cloudpickle, or ")

    def test_a_console_without_cloudpickle_is_refused_in_one_line(self):
        code = "import ddprun\ndef f(): return 1\nddprun.launch(f, nproc_per_node=1)"
        said = run(sys.executable, "-S", "-c", code, env=self.env, expect=1)
        self.assertRegex(said.splitlines()[-1], "^TypeError: ddprun: f is defined in a notebook or a console, .*pip install cloudpickle")

    def said_in_a_console(self, call):
        """Returns the results' x as a console with cloudpickle prints it. The class C and the
        function f are its own."""
        python = ROOT / ".venv-wheel" / "bin" / "python"
        if not list((ROOT / ".venv-wheel").glob("lib/python3*/site-packages/cloudpickle/__init__.py")):
            self.skipTest("no cloudpickle in .venv-wheel here")
        code = ("import copy, ddprun, functools, os\nclass C:\n def __init__(self, x): self.x = x\nk = 4\n"
                "def f(more=0): return C(k + more + int(os.environ['RANK']))\n"
                f"print({{r: c.x for r, c in ddprun.launch({call}, nproc_per_node=2, flags=['--quiet']).items()}})")
        return run(python, "-c", code, env=self.env)

    def test_a_console_with_cloudpickle(self):
        self.assertIn("{0: 4, 1: 5}", self.said_in_a_console("f"))

    def test_a_partial_of_a_consoles_function(self):
        self.assertIn("{0: 7, 1: 8}", self.said_in_a_console("functools.partial(f, 3)"))

    def test_an_argument_of_a_consoles_class(self):
        self.assertIn("{0: 9, 1: 9}", self.said_in_a_console("copy.copy, (C(9),)"))

    def test_a_console_without_cloudpickle_may_call_what_workers_can_import(self):
        code = "import ddprun, os\nprint(ddprun.launch(os.getenv, ('RANK',), nproc_per_node=2, flags=['--quiet']))"
        self.assertIn("{0: '0', 1: '1'}", run(sys.executable, "-S", "-c", code, env=self.env))

    def test_a_failure_is_in_the_callers_error_file(self):
        """A pod's termination message is such a file. It is there before, mounted alone."""
        message = self.file("message", "")
        inode = message.stat().st_ino
        self.env["TORCHELASTIC_ERROR_FILE"] = str(message)
        self.said("ddprun.launch(fails, nproc_per_node=2)", expect=1)
        self.assertIn("KeyError: 'no such key'", json.loads(message.read_text())["message"]["message"])
        self.assertEqual(message.stat().st_ino, inode)

    def test_a_launch_that_fails_in_a_worker_leaves_the_workers_own_error(self):
        message = self.folder / "message"
        self.env["TORCHELASTIC_ERROR_FILE"] = str(message)
        self.said("ddprun.launch(fails_inside, nproc_per_node=1)", expect=1)
        self.assertIn("ValueError: after it", json.loads(message.read_text())["message"]["message"])

    def test_a_function_of_torch_distributed(self):
        python = ROOT / ".venv" / "bin" / "python"
        if not list((ROOT / ".venv").glob("lib/python3*/site-packages/torch/__init__.py")):
            self.skipTest("no PyTorch in .venv here")
        script = self.file("reduce.py", REDUCE)
        self.assertIn("{0: 3.0, 1: 3.0}", run(python, script, env={**self.env, "RES_OPTIONS": "timeout:1 attempts:1"}))

    def start(self, script, **popen):
        """With Ctrl-C as it is at a terminal: whoever starts the tests in the background has
        switched it off."""
        job = subprocess.Popen([sys.executable, script], env=self.env, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **popen)
        self.addCleanup(job.kill)
        return job

    def start_waiting(self):
        """A launch whose worker waits, when it does."""
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        script = self.script(f"ddprun.launch(waits, ({str(fifo)!r},), nproc_per_node=1, flags=['--quiet'])")
        job = self.start(script)
        with open(fifo) as file:
            file.read(1)
        return job

    def test_ctrl_c_ends_the_job(self):
        job = self.start_waiting()
        job.send_signal(signal.SIGINT)  # to Python alone, as a notebook's
        stderr = job.communicate(timeout=DEADLINE_S)[1]
        self.assertIn("KeyboardInterrupt", stderr)

    def test_an_interrupt_of_the_group_is_one_interrupt(self):
        """As a terminal and Jupyter send it: to the process group. A second signal to ddprun would
        kill the workers while they save."""
        fifo, saved = self.folder / "fifo", self.folder / "saved"
        os.mkfifo(fifo)
        script = self.script(f"ddprun.launch(saves, ({str(fifo)!r}, {str(saved)!r}), nproc_per_node=1, flags=['--quiet'])")
        job = self.start(script, start_new_session=True)
        with open(fifo) as file:
            file.read(1)
        os.killpg(job.pid, signal.SIGINT)
        self.assertIn("KeyboardInterrupt", job.communicate(timeout=DEADLINE_S)[1])
        self.assertEqual(saved.read_text(), "saved")

    def test_a_callers_death_ends_the_job(self):
        job = self.start_waiting()
        job.kill()
        job.communicate(timeout=DEADLINE_S)  # until the last process of the job has closed stderr
        for path in self.temporary.iterdir():  # whoever dies so cannot clean up
            subprocess.run(["rm", "-r", path], check=True)


class Modules(unittest.TestCase):
    def test_importing_it_is_cheap(self):
        code = "import sys, ddprun; print('torch' in sys.modules, 'numpy' in sys.modules)"
        self.assertEqual(run(sys.executable, "-c", code, env=variables(PYTHONPATH=str(PACKAGE))), "False False\n")


if __name__ == "__main__":
    run_tests()
