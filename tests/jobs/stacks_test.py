#!/usr/bin/env python3
"""ddpctl on the host of a job, without a rendezvous. It shows jobs, their status, and the stacks of
their workers. No other user can read them."""

import fcntl
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import termios
import unittest

import control
import standstill_test
from machine import wait_until
from standstill_test import STAND_LINE, WAIT_LINE
from support import WAITING, LoggedTest, main

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


class OnThisHost(LoggedTest):
    begin = standstill_test.Standstill.begin  # with a stand-in for torch

    def setUp(self):
        super().setUp()
        self.packages = self.folder / "packages"
        for name, text in standstill_test.STAND_IN.items():
            (self.packages / name).parent.mkdir(parents=True, exist_ok=True)
            (self.packages / name).write_text(text)

    def ctl(self, *words, prefix=()):
        env = {name: value for name, value in os.environ.items() if not name.startswith("DDPRUN_")}
        done = subprocess.run([*prefix, control.DDPCTL, *map(str, words)], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=60)
        return done.returncode, done.stdout, done.stderr

    def done(self, *words):
        code, out, err = self.ctl(*words)
        self.assertEqual((code, err), (0, ""), out)
        return out

    def stacks(self, *words):
        return {one["rank"]: one for one in json.loads(self.done("stacks", *words, "--json"))["stacks"]}

    def test_equal_stacks_are_shown_once_and_a_rank_without_one_says_why(self):
        name = self.folder.name  # other tests have jobs on this host
        job = self.begin("held", f"--rdzv-id={name}", workers=3)
        text = self.done("stacks", job.pid)
        waits = f"  wait (held.py:{WAIT_LINE})\n  train (held.py:{STAND_LINE})\n"
        shown = text.replace(f"{self.folder}/", "")
        self.assertTrue(shown.startswith(f"ranks 0,2 in all_reduce #6 (9):\n{waits}"), text)
        self.assertIn("\nrank 1: no stack: its interpreter did not answer: a call of C may hold it; its process is S", text)
        only = self.stacks(name, 2)
        self.assertEqual(list(only), [2])
        self.assertEqual(only[2]["frames"][0], {"function": "wait", "file": str(self.folder / "held.py"), "line": WAIT_LINE})
        self.assertEqual((only[2]["steps"], only[2]["pid"]), (5, job.worker(2)))

    def test_a_program_without_a_witness_is_named(self):
        fifo = self.fifo("ready")
        job = self.start("--nproc-per-node=2", self.script(WAITING.replace("{fifo}", str(fifo))))
        self.read_lines(fifo, 2)
        wait_until(lambda: all(one["why"] == "it runs sleep, which is no Python" for one in self.stacks(job.pid).values()),
                   "the exec of both workers")
        self.assertEqual(self.done("stacks", job.pid).split(";")[0], "ranks 0-1: no stack: it runs sleep, which is no Python")

    def test_a_job_is_named_by_id_pid_or_log_folder(self):
        fifo = self.fifo("ready")
        script = self.script(WAITING.replace("{fifo}", str(fifo)))
        jobs = [self.start("--nproc-per-node=1", "--log-dir", self.folder / f"logs{number}", "--rdzv-id=twin", script) for number in range(2)]
        self.read_lines(fifo, 2)
        rows = {row.split()[0]: row.split()[1:3] for row in self.done("jobs").splitlines()[1:]}
        for job in jobs:
            self.assertEqual(rows[str(job.pid)], ["twin", "running"])
        code, out, err = self.ctl("stacks", "twin")
        self.assertEqual((code, out), (1, ""))
        self.assertRegex(err, rf"^ddpctl: 2 jobs are meant; name one by its pid: \d+ \({self.folder}/logs\d/twin_\w+\), \d+ ")
        for number, job in enumerate(jobs):
            latest = self.folder / f"logs{number}" / "latest"
            for name in job.pid, latest, os.readlink(latest):
                with self.subTest(name):
                    self.assertIn(f"twin: running, round 1, 1 of 1 nodes, 0 of 0 restarts spent\npid: {job.pid}\n", self.done("status", name))
        for words, wanted, line in ((("stacks", jobs[0].pid, 5), 4, "rank 5 is not on this node, which has 0 to 0 of 1"),
                                    (("status", "nobody"), 4, "no job of this user on this host has the id, the pid or the log folder nobody")):
            code, out, err = self.ctl(*words)
            self.assertEqual((code, out), (wanted, ""), err)
            self.assertIn(line, err)

    def test_top_shows_ranks_and_steps_once_or_until_ctrl_c(self):
        job = self.begin("held", "--rdzv-id=held", workers=2)
        text = self.done("top", job.pid)
        self.assertRegex(text, r"^held: running, round 1, 1 node, 2 workers, 0 of 0 restarts spent; ")
        self.assertRegex(text, rf"(?m)^0 {socket.gethostname()[:20]}\S* +rr$")
        self.assertRegex(text, r"(?m)^RANK +STEPS +A SECOND +LAST STEP +STEP P50, P99 +OWN P50, P99 +MEMORY\n0 +5 +- +\d+\.\d s ago +- +- +\d+ MiB\n1 +5 ")
        self.assertNotIn("\x1b", text)
        self.assertEqual(json.loads(self.done("top", job.pid, "--json"))["jobs"][0]["job"], "held")
        leader, terminal = pty.openpty()
        self.addCleanup(os.close, leader)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        shown = subprocess.Popen([control.DDPCTL, "top", str(job.pid)], stdout=terminal, stdin=subprocess.DEVNULL)
        os.close(terminal)
        screens = b""
        while screens.count(b"\x1b[H\x1b[2J") < 2 or not screens.rstrip().endswith(b"MiB"):
            screens += os.read(leader, 1 << 16)
        self.assertRegex(screens.decode(), r"\n0 +5 +0 +\d")
        shown.send_signal(signal.SIGINT)
        self.assertEqual(shown.wait(timeout=60), -signal.SIGINT)

    @unittest.skipUnless(os.geteuid() == 0, "another user can be had as root only")
    def test_another_user_reads_neither_stacks_nor_status(self):
        fifo = self.fifo("ready")
        job = self.start("--nproc-per-node=1", "--rdzv-id=secret", self.script(WAITING.replace("{fifo}", str(fifo))))
        self.read_lines(fifo, 1)
        for words in ("stacks", job.pid), ("status", job.pid), ("nodes", "secret"), ("top", job.pid), ("jobs",):
            with self.subTest(words):
                code, out, err = self.ctl(*words, prefix=NOBODY)
                self.assertEqual(code, 0 if words == ("jobs",) else 4, err)
                self.assertNotIn(str(job.pid), out)
                self.assertNotIn("secret", out)
        # Nor whoever goes to the socket by its name.
        code, out, err = self.speak(job.pid, prefix=NOBODY)
        self.assertEqual((code, out), (0, "b''\n"), err)
        self.assertNotEqual(self.speak(job.pid)[1], "b''\n")

    @staticmethod
    def speak(pid, prefix=()):
        """Sends a question's bytes to the socket of that ddprun; prints the answer's."""
        text = f"""
import socket
name = next(row.split()[-1] for row in open("/proc/net/unix") if "@ddprun-node/{pid}/" in row)
peer = socket.socket(socket.AF_UNIX)
peer.connect("\\0" + name[1:])
try:
    peer.sendall(bytes.fromhex("1200"))  # Question.show
    peer.shutdown(socket.SHUT_WR)
    print(peer.recv(1 << 16)[:1])
except OSError:
    print(b"")
"""
        done = subprocess.run([*prefix, "/usr/bin/python3", "-c", text], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr


if __name__ == "__main__":
    main()
