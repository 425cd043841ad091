"""The watches beside the workers' exits: the watchdog's deadlines, uninterruptible sleep; and the
health port."""

import json
import os
import socket
import stat
import unittest
import urllib.error
import urllib.request

from machine import free_port
from support import SLEEPER, JobTest, main, torch_python, with_variables

TORCH_DEADLINE = 120  # seconds; importing PyTorch takes a few
# Rank 1 sets deadlines as torch.distributed.elastic.timer does. It gives one back, in the same
# write, so that it cannot pass before. In its first attempt it sets one that passes.
REQUESTS = """
import json, os, stat, sys, time
path = os.environ["TORCHELASTIC_TIMER_FILE"]
assert stat.S_ISFIFO(os.stat(path).st_mode)
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]

def request(*deadlines):
    with open(path, "w") as fifo:
        for scope, expiration in deadlines:
            fifo.write(json.dumps({"version": 1, "pid": os.getpid(), "scope_id": scope,
                                   "expiration_time": expiration, "signal": 9}) + "\\n")

if os.environ["RANK"] == "1":
    request(("given back", time.time() + 0.3), ("given back", -1))
    if attempt == sys.argv[1]:
        request(("step", time.time() + 0.3))
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
# Rank 1 sleeps uninterruptibly, as the parent of a vfork(2) does until its child lets go. It does
# so not before rank 0 is there. That child runs in this one's memory, so it must do nothing more
# than wait.
UNINTERRUPTIBLE = """
import ctypes, os, sys
libc = ctypes.PyDLL(None)
os.write(1, f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n".encode())  # in one piece
if os.environ["RANK"] == "0":
    open(sys.argv[1], "w").write("here\\n")
else:
    open(sys.argv[1]).readline()
if os.environ["RANK"] == "0" or libc.vfork() == 0:
    libc.pause()
"""


class Watchdog(JobTest):
    def watched(self, *args, **variables):
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        env = with_variables(TORCHELASTIC_ENABLE_FILE_TIMER="1", TMPDIR=str(self.temporary), **variables)
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

    def test_the_fifo_is_where_only_this_user_can_put_one(self):
        script = self.script("#!/bin/sh\nstat -c '%u %a' $(dirname $TORCHELASTIC_TIMER_FILE)\necho $TORCHELASTIC_TIMER_FILE\n")
        code, out, err = self.watched(script)
        self.assertEqual(code, 0, err)
        self.assertEqual(out.splitlines().count(f"{os.getuid()} 700"), 2, out)
        self.assertFalse(os.path.lexists(out.splitlines()[-1]))
        self.assertEqual(os.listdir(self.temporary), [])

    @unittest.skipUnless(os.getuid() == 0, "only root may give a file to another user")
    def test_another_users_fifo_is_refused(self):
        path = self.folder / "timer"
        os.mkfifo(path, 0o666)
        os.chown(path, 65534, 65534)
        code, _, err = self.watched("/bin/true", TORCHELASTIC_TIMER_FILE=str(path))
        self.assertEqual(code, 1)
        self.assertIn(f"TORCHELASTIC_TIMER_FILE={path}: it belongs to another user (uid 65534)", err)

    def test_case_61_a_path_that_is_no_fifo(self):
        path = self.folder / "timer"
        path.write_text("")
        code, _, err = self.watched("/bin/true", TORCHELASTIC_TIMER_FILE=str(path))
        self.assertEqual(code, 1)
        self.assertIn(f"TORCHELASTIC_TIMER_FILE={path}", err)
        self.assertFalse(stat.S_ISFIFO(path.stat().st_mode))

    @unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
    def test_case_61_by_pytorchs_client(self):
        env = with_variables(PYTHON_EXEC=torch_python(), TORCHELASTIC_ENABLE_FILE_TIMER="1")
        code, _, err = self.run_job(self.script(CLIENT, "client.py"), env=env, timeout=TORCH_DEADLINE)
        self.assertEqual(code, 1)
        self.assertRegex(self.cause(err), r"exitcode +: -9 ")
        self.assertRegex(err, r"watchdog: the deadline 'step' of process \d+ has passed")


class Health(JobTest):
    def test_a_worker_in_uninterruptible_sleep_ends_the_job(self):
        env = with_variables(TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT="0.3")
        code, out, err = self.run_job("--nproc-per-node=2", "--max-restarts=3",
                                      self.script(UNINTERRUPTIBLE, "asleep.py"), self.ready, env=env)
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
            code, _, err = self.run_job("/bin/true", env=with_variables(TORCHELASTIC_HEALTH_CHECK_PORT=str(port)))
        self.assertEqual(code, 0)
        self.assertIn(f"no health check server: port {port} on ", err)
        self.assertIn("choose another TORCHELASTIC_HEALTH_CHECK_PORT", err)


if __name__ == "__main__":
    main()
