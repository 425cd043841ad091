"""Acceptance cases 60 to 64: PyTorch's own words about its launcher, the watchdog, devices, what
many starts leave, and what the agent costs while its workers run.

DDPRUN_TEST_STARTS   starts of case 63, default 60 (the case says 1000)
"""

import json
import os
import pathlib
import socket
import stat
import time
import unittest
import urllib.error
import urllib.request

from cases_support import (
    PRINT_ENV, SLEEPER, CaseTest, free_port, main, sanitized, state_of, told, torch_python,
    wait_until, with_variables)

STARTS = int(os.environ.get("DDPRUN_TEST_STARTS", "60"))
QUIET_S = 2  # how long workers run quietly in case 64: the case itself, not a wait for an event
MEMORY_MIB = 20
TORCH_DEADLINE = 120  # seconds; importing PyTorch takes a few

LAUNCHED = """
import os, sys
import torch, torch.distributed as dist
assert dist.is_torchelastic_launched()
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
sys.stdout.write(f"{torch.__version__} rank {dist.get_rank()} sum {value.item()}\\n")
sys.stdout.flush()
dist.destroy_process_group()
os._exit(0)  # PyTorch's own exit aborts now and then, under any launcher
"""
# Rank 1 sets deadlines as torch.distributed.elastic.timer does: one that it gives back, and in its
# first attempt one that passes.
REQUESTS = """
import json, os, stat, sys, time
path = os.environ["TORCHELASTIC_TIMER_FILE"]
assert stat.S_ISFIFO(os.stat(path).st_mode)
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]

def request(scope, expiration):
    with open(path, "w") as fifo:
        fifo.write(json.dumps({"version": 1, "pid": os.getpid(), "scope_id": scope,
                               "expiration_time": expiration, "signal": 9}) + "\\n")

if os.environ["RANK"] == "1":
    request("given back", time.time() + 0.3)
    request("given back", -1)
    if attempt == sys.argv[1]:
        request("step", time.time() + 0.3)
        time.sleep(1000)
    time.sleep(0.6)  # past both deadlines
elif attempt == sys.argv[1]:
    time.sleep(1000)
"""
# The same by PyTorch's client.
CLIENT = """
import os, time
from torch.distributed.elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=60, scope="given back"):
    pass
with timer.expires(after=0.5, scope="step"):
    time.sleep(1000)
"""
# Sleeps uninterruptibly, as the parent of a vfork(2) does until its child lets go. That child runs in
# this one's memory, so it must do nothing more than wait.
UNINTERRUPTIBLE = """
import ctypes, os
libc = ctypes.PyDLL(None)
os.write(1, f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n".encode())  # in one piece
if os.environ["RANK"] == "0" or libc.vfork() == 0:
    libc.pause()
"""


@unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
class CasePyTorch(CaseTest):
    def test_case_60_pytorch_knows_its_launcher(self):
        """With the version of PyTorch that is in .venv (2.11); the case names 2.15 too, which this
        repository does not install."""
        env = with_variables(PYTHON_EXEC=torch_python(), OMP_NUM_THREADS="1")
        code, out, err = self.run_job("--nproc-per-node=2", self.script(LAUNCHED, "launched.py"),
                                      env=env, timeout=TORCH_DEADLINE)
        self.assertEqual(code, 0, err)
        print(out, end="")
        self.assertEqual(sorted(line.split(" ", 1)[1] for line in out.splitlines()),
                         ["rank 0 sum 2.0", "rank 1 sum 2.0"])

    def test_case_61_by_pytorchs_client(self):
        env = with_variables(PYTHON_EXEC=torch_python(), TORCHELASTIC_ENABLE_FILE_TIMER="1")
        code, _, err = self.run_job(self.script(CLIENT, "client.py"), env=env,
                                    timeout=TORCH_DEADLINE)
        self.assertEqual(code, 1)
        self.assertRegex(self.cause(err), r"exitcode +: -9 ")
        self.assertRegex(err, r"watchdog: the deadline 'step' of process \d+ has passed")


class CaseWatchdog(CaseTest):
    def watched(self, *args, **variables):
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        env = with_variables(TORCHELASTIC_ENABLE_FILE_TIMER="1", TMPDIR=str(self.temporary),
                             **variables)
        return self.run_job("--nproc-per-node=2", *args, env=env)

    def test_case_61_an_expired_timer_is_a_failure_of_its_worker(self):
        code, _, err = self.watched(self.script(REQUESTS, "requests.py"), "0")
        self.assertEqual(code, 1, err)
        cause = self.cause(err)
        self.assertRegex(cause, r"rank +: 1 ")
        self.assertRegex(cause, r"exitcode +: -9 ")
        self.assertRegex(cause, r"rank 0 \(exitcode -15\)")
        self.assertRegex(err, r"watchdog: the deadline 'step' of process \d+ has passed")
        self.assertNotIn("given back", err)

    def test_case_61_a_restart_heals(self):
        code, _, err = self.watched("--max-restarts=1", self.script(REQUESTS, "requests.py"), "0")
        self.assertEqual(code, 0, err)
        self.assertEqual(os.listdir(self.temporary), [])

    def test_case_61_the_path_by_variable(self):
        path = self.folder / "timer"
        script = self.script("#!/bin/sh\necho $TORCHELASTIC_TIMER_FILE\n")
        code, out, err = self.watched(script, TORCHELASTIC_TIMER_FILE=str(path))
        self.assertEqual((code, out), (0, f"{path}\n" * 2), err)
        self.assertFalse(path.exists())

    def test_case_61_a_path_that_is_no_fifo(self):
        path = self.folder / "timer"
        path.write_text("")
        code, _, err = self.watched("/bin/true", TORCHELASTIC_TIMER_FILE=str(path))
        self.assertEqual(code, 1)
        self.assertIn(f"TORCHELASTIC_TIMER_FILE={path}", err)
        self.assertFalse(stat.S_ISFIFO(path.stat().st_mode))


class Health(CaseTest):
    def test_a_worker_in_uninterruptible_sleep_ends_the_job(self):
        env = with_variables(TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT="0.3")
        code, out, err = self.run_job("--nproc-per-node=2", "--max-restarts=3",
                                      self.script(UNINTERRUPTIBLE, "asleep.py"), env=env)
        self.assertEqual((code, out), (1, "attempt 0\n" * 2), err)
        self.assertRegex(err, r"rank 1 \(local rank 1, pid \d+\) on \S+ has been in uninterruptible "
                              r"sleep for 0.3 s, in the kernel's [\w?]+;")

    def test_the_health_port_answers_while_the_job_runs(self):
        port = free_port()
        job = self.start("--nproc-per-node=2", self.worker(SLEEPER),
                         env=with_variables(TORCHELASTIC_HEALTH_CHECK_PORT=str(port)))
        self.heard(2)
        probe = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with probe.open(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
            self.assertEqual(json.load(answer), {"phase": "running", "workers": 2, "attempt": 0})
        self.stop(job)
        with self.assertRaises(urllib.error.URLError):
            probe.open(f"http://127.0.0.1:{port}/health", timeout=30)

    def test_a_health_port_that_is_taken_is_warned_of(self):
        with socket.create_server(("", 0)) as other:
            port = other.getsockname()[1]
            code, _, err = self.run_job(
                "/bin/true", env=with_variables(TORCHELASTIC_HEALTH_CHECK_PORT=str(port)))
        self.assertEqual(code, 0)
        self.assertIn(f"no health check server: port {port} on ", err)
        self.assertIn("choose another TORCHELASTIC_HEALTH_CHECK_PORT", err)


@unittest.skipIf(pathlib.Path("/dev/nvidia0").exists(), "this machine has a GPU")
class CaseDevices(CaseTest):
    def test_case_62_gpu_without_a_gpu(self):
        code, out, err = self.run_job("--nproc-per-node=gpu", "/bin/echo")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("--nproc-per-node=gpu", err)

    def test_case_62_auto_counts_cpus(self):
        envs, _ = self.envs("--nproc-per-node=auto", self.script(PRINT_ENV))
        self.assertEqual(len(envs), os.cpu_count())


class CaseManyStarts(CaseTest):
    def test_case_63_nothing_is_left(self):
        temporary = self.folder / "tmp"
        temporary.mkdir()
        script = self.script(PRINT_ENV.replace("DDPRUN_TOKEN", "DDPRUN_JOB"))
        took = []
        for _ in range(STARTS):
            begin = time.monotonic()
            env = self.env_of_one(script, env=with_variables(TMPDIR=str(temporary)))
            took.append(time.monotonic() - begin)
            self.assertEqual(os.listdir(temporary), [])
            self.assertFalse(listens(int(env["MASTER_PORT"])))
            cookie = env["DDPRUN_JOB"]
            self.assertEqual([name for name in os.listdir("/dev/shm") if cookie in name], [])
            self.assertEqual(list(cgroup_folders(cookie)), [])
        told("a start of one worker, and looking for leftovers", took)


class CaseIdle(CaseTest):
    def setUp(self):
        super().setUp()
        self.job = self.start("--nproc-per-node=2", self.worker(SLEEPER))
        self.heard(2)
        self.ours = [self.job.pid, self.job.agent()]

    @unittest.skipIf(sanitized(), "a sanitizer's build has memory of its own")
    def test_case_64_memory(self):
        kib = sum(field(pid, "smaps_rollup", "Pss:") for pid in self.ours)
        print(f"guardian and agent: {kib / 1024:.1f} MiB")
        self.assertLessEqual(kib / 1024, MEMORY_MIB)
        self.stop(self.job)

    @unittest.skipIf(sanitized(), "a sanitizer's runtime has threads of its own")
    def test_case_64_no_wake_ups(self):
        wait_until(lambda: all(map(sleeps, self.ours)), "the end of what a start brings")
        before = [self.activity(pid) for pid in self.ours]
        time.sleep(QUIET_S)
        after = [self.activity(pid) for pid in self.ours]
        for name, (ticks, switches), (new_ticks, new_switches) in zip(
                ("guardian", "agent"), before, after):
            print(f"{name}: {new_ticks - ticks} CPU ticks and {new_switches - switches} wake-ups "
                  f"in {QUIET_S} s")
            self.assertEqual(new_ticks, ticks)
            self.assertLessEqual(new_switches - switches, 1)
        self.stop(self.job)

    @staticmethod
    def activity(pid):
        """CPU ticks, and how often a thread of it has gone to sleep anew."""
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        switches = sum(field(f"{pid}/task/{thread}", "status", "voluntary_ctxt_switches:")
                       for thread in os.listdir(f"/proc/{pid}/task"))
        return int(fields[11]) + int(fields[12]), switches


def sleeps(pid):
    return state_of(pid) == "S"


def field(process, file, name):
    """One number of /proc/<process>/<file>."""
    lines = pathlib.Path(f"/proc/{process}/{file}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def listens(port):
    for table in "/proc/net/tcp", "/proc/net/tcp6":
        rows = [row.split() for row in pathlib.Path(table).read_text().splitlines()[1:]]
        if any(row[3] == "0A" and int(row[1].split(":")[1], 16) == port for row in rows):
            return True
    return False


def cgroup_folders(cookie):
    """Folders of cgroups that carry the job's name, wherever version 2 is mounted."""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        if line.split()[2] == "cgroup2":
            yield from pathlib.Path(line.split()[1]).rglob(f"*{cookie}*")


if __name__ == "__main__":
    main()
