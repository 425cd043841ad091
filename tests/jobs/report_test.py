"""The end of a job: the failure report, its JSON form, the exit code, and a silent death's
evidence."""

import json
import os
import pathlib
import re
import resource
import signal
import socket
import time
import uuid

from machine import free_port
from support import DEAF, SLEEPER, JobTest, main, with_variables

SCREEN_LINES = 30
LIMIT_MIB = 200  # of a cgroup: what a sanitizer's ddprun takes as well fits in
# Takes more than the limit, a page at a time.
GREEDY = f"""
taken = []
while len(taken) < {4 * LIMIT_MIB}:
    taken.append(b"x" * (1 << 20))
"""
FAILS = "#!/bin/sh\ntest $RANK = 1 || exec sleep 1000\n"


class Report(JobTest):
    def failing(self, *args, env=None, **options):
        env = with_variables(OMP_NUM_THREADS="1", **(env or {}))
        code, _, err = self.run_job(*args, env=env, **options)
        self.assertEqual(code, 1, err)
        return err

    def check_last_words(self, *flags):
        script = self.script(FAILS + "seq -f 'word %g' 100 >&2\nexit 7\n")
        report = report_of(self.failing("--nproc-per-node=2", *flags, script))
        self.assertLessEqual(len(report), SCREEN_LINES, report)
        quoted = [line.partition("| ")[2] for line in report if line.startswith("  stderr")]
        self.assertEqual(quoted, [f"word {number}" for number in range(81, 101)])
        text = "\n".join(report)
        self.assertRegex(text, r"rank +: 1 \(local_rank: 1\)")
        self.assertRegex(text, r"exitcode +: 7 ")
        self.assertRegex(text, r"rank 0 \(exitcode -15\)")
        self.assertRegex(text, r"run time +: \d+\.\d+ s in attempt 1 of 1, node rank 0, role ")

    def test_one_screen_with_the_last_words(self):
        self.check_last_words()

    def test_one_screen_with_the_last_words_of_a_file(self):
        self.check_last_words("-r", "3", "--log-dir", self.folder / "logs")

    def test_one_screen_with_the_last_words_of_a_tee(self):
        self.check_last_words("-t", "3", "--log-dir", self.folder / "logs")

    def test_a_workers_record_ends_no_line_and_colours_no_terminal(self):
        text = "T:\n\x1b[31mred\x9b2J\r\n\u202e\u2028W0101 00:00:00.000 1 ddprun] false\nexitcode  : 0 (pid: 1)\n[rank0]: x"
        record = json.dumps({"message": {"message": text, "extraInfo": {"py_callstack": text, "timestamp": "1"}}})
        record_file = self.folder / "record"
        record_file.write_text(record)
        script = self.script(FAILS + f"cat {record_file} > $TORCHELASTIC_ERROR_FILE\nexit 7\n")
        json_report = self.folder / "report.json"
        err = self.failing("--nproc-per-node=2", "--role=r\x1b[1m\nx", f"--error-report={json_report}", script)
        self.assertRegex(err, "[^\x1b]31mred")
        for unwanted in map(chr, [*range(9), *range(11, 32), *range(0x7f, 0xa0), 0x202e, 0x2028]):
            self.assertNotIn(unwanted, err)
        for line in err.splitlines():
            self.assertFalse(line.startswith(("[rank0]", "  exitcode  : 0", "x")), err)
            self.assertNotRegex(line, r"^W0101")
        self.assertTrue(json_report.read_text().isascii())
        self.assertEqual(json.loads(json_report.read_text())["root_cause"]["traceback"], text)

    def test_a_report_goes_through_no_link_of_another_user(self):
        if os.getuid() != 0:
            self.skipTest("only root may give a file to another user")
        shared, victim = self.folder / "shared", self.folder / "victim"
        shared.mkdir()
        shared.chmod(0o1777)
        for name in "report.json", "error.json":
            victim.write_text("of value")
            (shared / name).symlink_to(victim)
            os.lchown(shared / name, 65534, 65534)
        self.failing("--nproc-per-node=2", f"--error-report={shared}/report.json", self.script(FAILS + "exit 7\n"),
                     env={"TORCHELASTIC_ERROR_FILE": f"{shared}/error.json"})
        self.assertEqual(victim.read_text(), "of value")
        for name in "report.json", "error.json":
            self.assertFalse((shared / name).is_symlink())
            json.loads((shared / name).read_text())
        self.assertEqual(sorted(os.listdir(shared)), ["error.json", "report.json"])

    def test_one_screen_with_a_trace_and_last_words(self):
        trace = "\\\\n".join(f"frame {number}" for number in range(100))
        record = ('{"message": {"message": "E", "extraInfo": '
                  '{"timestamp": "%d", "py_callstack": "%s"}}}')
        script = self.script(
            FAILS + "printf '" + record % (time.time(), trace) + "' > $TORCHELASTIC_ERROR_FILE\n"
            "seq -f 'word %g' 100 >&2\nexit 1\n")
        report = report_of(self.failing("--nproc-per-node=2", script))
        self.assertLessEqual(len(report), SCREEN_LINES, report)
        self.assertIn("  frame 99", report)
        self.assertIn("  stderr    | word 100", report)

    def error_report(self, *args, expected=1, **options):
        path = self.folder / "report.json"
        code, _, err = self.run_job(f"--error-report={path}", *args, **options)
        report = json.loads(path.read_text())
        self.assertEqual((code, report["exit_code"]), (expected, expected), err)
        self.assertEqual(report["schema"], 1)
        return report

    def test_error_report_of_a_failure(self):
        script = self.script(FAILS + "echo last words >&2\nkill -SEGV $$\n")
        report = self.error_report("--nproc-per-node=2", "--role=r", "--rdzv-id=job", script)
        self.assertEqual((report["succeeded"], report["ended_by"]), (False, "worker"))
        self.assertEqual([report[name] for name in ("entry", "run_id", "node_rank")], [script, "job", 0])
        self.assertEqual((report["attempt"], report["max_restarts"]), (1, 0))
        cause = report["root_cause"]
        wanted = {"rank": 1, "local_rank": 1, "role": "r", "exit_code": -11, "signal": "SIGSEGV",
                  "stopped_by_ddprun": False, "stderr_end": ["last words"]}
        self.assertEqual({name: cause[name] for name in wanted}, wanted)
        self.assertIn("Signal 11 (SIGSEGV)", cause["reason"])
        self.assertRegex(cause["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        (other,) = report["other_workers"]
        self.assertEqual((other["rank"], other["exit_code"], other["stopped_by_ddprun"]), (0, -15, True))

    def test_the_report_says_where_the_core_dump_is(self):
        if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
            self.skipTest("no core may be dumped here (`ulimit -Hc` is 0)")
        pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip()
        folder = self.folder / "there"
        folder.mkdir()
        script = self.script("#!/bin/sh\nulimit -c unlimited\nkill -SEGV $$\n")
        path = self.folder / "report.json"
        err = self.failing(f"--error-report={path}", script, cwd=folder)
        told = json.loads(path.read_text())["root_cause"].get("core_dump")
        if told is None and (pattern.startswith(("|", "@", "/"))):
            self.skipTest(f"the kernel dumped no core here: core_pattern is {pattern}")
        self.assertRegex(err, rf"core dump : {re.escape(told)[:60]}")
        cores = list(folder.iterdir())
        if cores:
            self.assertTrue(told.startswith(f"{cores[0]} ("), (told, cores))
            self.assertRegex(told, r" \(\d+\.\d MiB\)$")
        else:
            self.assertIn("core_pattern", told)

    def test_without_a_core_dump_none_is_told_of(self):
        err = self.failing(self.script("#!/bin/sh\nulimit -c 0\nkill -SEGV $$\n"))
        self.assertNotIn("core dump", err)

    def test_error_report_of_other_endings(self):
        self.assertEqual(self.error_report("/bin/true", expected=0)["ended_by"], "success")
        report = self.error_report(
            "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
            "--rdzv-conf=join_timeout=1", "/bin/true")
        self.assertEqual(report["ended_by"], "rendezvous")
        self.assertIn("1 of 2", report["message"])
        path = self.folder / "report.json"
        job = self.start(f"--error-report={path}", self.worker(SLEEPER))
        self.heard(1)
        self.stop(job)
        report = json.loads(path.read_text())
        self.assertEqual((report["ended_by"], report["signal"]), ("signal", "SIGTERM"))

    def test_a_worker_that_never_started_has_no_pid(self):
        # Descriptors for some of eight workers and their pipes only.
        few = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))}
        flags = "--nproc-per-node=8", "-t", "3", "--log-dir", self.folder / "logs"
        report = self.error_report(*flags, "/bin/sleep", "1000", **few)
        self.assertIn(None, [worker["pid"] for worker in [report["root_cause"], *report["other_workers"]]])
        text = "\n".join(report_of(self.failing(*flags, "/bin/sleep", "1000", **few)))
        self.assertIn("(never started)", text)
        self.assertNotIn("pid: 0", text)

    def test_error_report_where_none_can_be_written(self):
        code, _, err = self.run_job("--error-report=/proc/none/report", "/bin/true")
        self.assertEqual(code, 1)
        self.assertIn("--error-report", err)


class ExitCodes(JobTest):
    def code(self, *args, flags=("--exit-codes=detailed",), **options):
        return self.run_job(*flags, *args, **options)[0]

    def test_detailed_of_workers(self):
        self.assertEqual(self.code("/bin/true"), 0)
        self.assertEqual(self.code(self.script("#!/bin/sh\nexit 7\n")), 7)
        self.assertEqual(self.code(self.script("#!/bin/sh\nkill -9 $$\n")), 128 + 9)
        self.assertEqual(self.code("--max-restarts=1", self.script("#!/bin/sh\nexit 7\n")), 120)

    def test_detailed_of_the_rendezvous(self):
        self.assertEqual(self.code(
            "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
            "--rdzv-conf=join_timeout=1", "/bin/true"), 121)

    def test_detailed_of_a_signal(self):
        for text, flags in (SLEEPER, []), (DEAF, ["--shutdown-timeout=0"]):
            job = self.start("--exit-codes=detailed", *flags, self.worker(text))
            self.heard(1)
            self.assertEqual(self.stop(job)[0], 122)

    def test_detailed_of_the_launcher(self):
        plain = self.folder / "file"
        plain.write_text("")
        self.assertEqual(self.code(f"--log-dir={plain}", "/bin/true"), 123)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.assertEqual(self.code(f"--master-port={port}", "/bin/true"), 123)

    def test_detailed_of_usage(self):
        self.assertEqual(self.code("--nope"), 2)
        self.assertEqual(self.code(), 2)
        self.assertEqual(self.code("--nnodes=0", "/bin/true"), 1)

    def nodes(self, script):
        """Two nodes, and the one that has rank 1 last."""
        flags = ("--exit-codes=detailed", "--nnodes=2", "--rdzv-backend=c10d",
                 f"--rdzv-endpoint=127.0.0.1:{free_port()}")
        jobs = [self.start(*flags, self.worker(script)) for _ in range(2)]
        self.heard(2)
        return sorted(jobs, key=lambda job: job.worker(1) is not None)

    def test_detailed_of_another_nodes_worker(self):
        jobs = self.nodes("#!/bin/sh\ntrap 'exit 7' USR1\necho $RANK > {fifo}\n"
                          "while :; do sleep 1000 & wait; done\n")
        os.kill(jobs[1].worker(1), signal.SIGUSR1)
        self.assertEqual([job.finish()[0] for job in jobs], [7, 7])

    def test_detailed_of_a_lost_node(self):
        jobs = self.nodes(SLEEPER)
        os.kill(jobs[1].agent(), signal.SIGKILL)
        self.assertEqual([job.finish()[0] for job in jobs], [1, 128 + 9])

    def test_detailed_of_a_node_that_is_told_to_end(self):
        """The other node did not fail either: a scheduler may start both again."""
        jobs = self.nodes(SLEEPER)
        jobs[1].process.send_signal(signal.SIGTERM)
        self.assertEqual([job.finish()[0] for job in jobs], [122, 122])

    def test_of_torchrun(self):
        for flags in (), ("--exit-codes=torchrun",):
            self.assertEqual(self.code(self.script("#!/bin/sh\nexit 7\n"), flags=flags), 1)
            self.assertEqual(self.code(self.script("#!/bin/sh\nkill -9 $$\n"), flags=flags), 1)


class OutOfMemory(JobTest):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("only root can make a cgroup with a limit")
        self.cgroup = make_cgroup(LIMIT_MIB << 20)
        if self.cgroup is None:
            self.skipTest("no memory controller, of either version, can be used here")
        self.addCleanup(self.cgroup.rmdir)
        self.entering = f"echo $$ > {self.cgroup}/cgroup.procs"
        self.whole_job = ("sh", "-c", f'{self.entering}; exec "$@"', "sh")

    def check(self, err):
        cause = self.cause(err)
        self.assertRegex(cause, r"exitcode +: -9 ")
        self.assertRegex(
            cause, rf"out of memory in cgroup \S*/{self.cgroup.name}: "
                   rf"limit {LIMIT_MIB}\.0 MiB, peak (19\d|{LIMIT_MIB})\.\d MiB")

    def test_the_whole_job_in_a_limited_cgroup(self):
        code, _, err = self.run_job(self.script(GREEDY, "greedy.py"), env=with_variables(), prefix=self.whole_job)
        self.assertEqual(code, 1)
        self.check(err)

    def test_a_worker_in_a_limited_cgroup(self):
        if not kernel_log_can_be_read():
            self.skipTest("the kernel's log cannot be read, which alone tells of another's cgroup")
        self.script(GREEDY, "greedy.py")
        script = self.script(f"#!/bin/sh\n{self.entering}\nexec $PYTHON_EXEC {self.folder}/greedy.py\n")
        code, _, err = self.run_job(script, env=with_variables())
        self.assertEqual(code, 1)
        self.check(err)

    def check_child(self, *command):
        """A child is killed, and the worker lives on for a while and fails by itself."""
        code, _, err = self.run_job(*command, env=with_variables(), prefix=self.whole_job)
        self.assertEqual(code, 1, err)
        cause = self.cause(err)
        self.assertRegex(cause, rf"memory +: the kernel killed a process beside it in this attempt: out of memory in cgroup "
                                rf"\S*/{self.cgroup.name}: limit {LIMIT_MIB}\.0 MiB")
        return cause

    def test_a_child_of_a_worker(self):
        greedy = self.script(GREEDY, "greedy.py")
        loader = ("import subprocess, sys\ndone = subprocess.run([sys.executable, {!r}])\n"
                  "raise RuntimeError(f'DataLoader worker is killed by signal: {{done.returncode}}')\n")
        cause = self.check_child(self.script(loader.format(greedy), "train.py"))
        self.assertRegex(cause, r"exitcode +: 1 ")

    def test_a_program_under_a_shell(self):
        greedy = self.script(GREEDY, "greedy.py")
        cause = self.check_child(self.script(f"#!/bin/sh\n$PYTHON_EXEC {greedy}\nexit $?\n"))
        self.assertRegex(cause, r"exitcode +: 137 ")

    def test_a_child_that_died_otherwise_is_not_blamed_on_memory(self):
        for end in "kill -9 $$", "exit 137", "exit 1":
            with self.subTest(end):
                code, _, err = self.run_job(self.script(f"#!/bin/sh\nsh -c '{end}'\nexit $?\n"), prefix=self.whole_job)
                self.assertEqual(code, 1)
                self.assertNotIn("out of memory", err)

    def test_a_kill_by_somebody_is_not_blamed_on_memory(self):
        # In a cgroup of its own, whose counter does not tell of another job that had no memory.
        job = self.start(self.worker(SLEEPER), prefix=self.whole_job)
        self.heard(1)
        os.kill(job.worker(0), signal.SIGKILL)
        err = job.finish()[2]
        job.wait_gone()
        self.assertIn("Signal 9 (SIGKILL)", self.cause(err))
        self.assertNotIn("out of memory", err)


def report_of(err):
    """The failure report's lines: from the one that says FAILED."""
    lines = err.splitlines()
    (title,) = [at for at, line in enumerate(lines) if re.search(r" FAILED$", line)]
    begin = title - 1 if title > 0 and set(lines[title - 1]) == {"="} else title
    return lines[begin:]


def make_cgroup(limit_bytes):
    """A new cgroup with this limit of memory below this process's own; None where there is none."""
    own = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = path.lstrip("/")
    name = "ddprun_test_" + uuid.uuid4().hex[:8]
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, mounted, kind, options = line.split()[:4]
        if kind == "cgroup" and "memory" in options.split(","):
            folder, limit = pathlib.Path(mounted, own["memory"], name), "memory.limit_in_bytes"
        elif kind == "cgroup2":
            folder, limit = pathlib.Path(mounted, own.get("", ""), name), "memory.max"
        else:
            continue
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(limit_bytes))
            return folder
        except OSError:
            folder.rmdir()
    return None


def kernel_log_can_be_read():
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
        return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
