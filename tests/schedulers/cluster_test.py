"""The virtual cluster itself: soon there, and nothing left of it, however it ends."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "jobs"))
from machine import wait_until  # noqa: E402
from support import JobTest, main, with_variables  # noqa: E402
from virtual_nodes import CLUSTER, lacking  # noqa: E402

LIMIT = 60  # seconds for a cluster and what runs on it
CAMPAIGN = HERE.parent / "campaigns" / "schedulers"


@unittest.skipIf(lacking(), lacking())
class Cluster(JobTest):
    def processes(self):
        """The command lines of all that has a cluster of this test in its environment."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                if f"DDPRUN_CLUSTER={self.folder}/".encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    def start_cluster(self, *command, **options):
        """In a process group of its own, as at a terminal."""
        process = subprocess.Popen([*map(str, command)], env=with_variables(TMPDIR=str(self.folder)), start_new_session=True, **options)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def assert_nothing_left(self, names=()):
        self.assertEqual(self.processes(), [])
        self.assertEqual([str(path) for path in self.folder.glob("**/ddprun_cluster_*")], [])
        cgroups = [name for place in ("memory", "freezer") for _, folders, _ in os.walk(f"/sys/fs/cgroup/{place}") for name in folders]
        self.assertEqual([name for name in names if name in cgroups], [])

    def test_starts_soon_and_leaves_nothing(self):
        begin = time.monotonic()
        script = self.script("#!/bin/bash\nsrun --nodes=4 --ntasks-per-node=1 hostname | sort\npgrep -c slurmd\n", "login.sh")
        out, err = self.start_cluster(CLUSTER, script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).communicate(timeout=LIMIT)
        self.assertEqual(out.split(), ["node01", "node02", "node03", "node04", "4"], err)
        print(f"up, used and gone in {time.monotonic() - begin:.1f} s")
        self.assert_nothing_left()

    def test_gives_the_exit_code_of_its_command(self):
        self.assertEqual(self.start_cluster(CLUSTER, "sh", "-c", "exit 5").wait(LIMIT), 5)

    def test_has_our_stdin(self):
        process = self.start_cluster(CLUSTER, "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.assertEqual(process.communicate("a line\n", timeout=LIMIT)[0], "a line\n")

    def end_midway(self, act, wanted, **variables):
        """A cluster with a job on it; answers the name of its folder, and of its cgroups."""
        script = self.worker("#!/bin/sh\nsrun --nodes=2 sh -c 'echo ready > {fifo}; exec sleep 1000'\n", "login.sh")
        process = self.start_cluster("env", *(f"{name}={value}" for name, value in variables.items()), CLUSTER, script, stderr=subprocess.PIPE,
                                     text=True)
        self.heard(2)
        (folder,) = self.folder.glob("ddprun_cluster_*")
        self.assertTrue(any("slurmd" in words for words in self.processes()))
        act(process)
        _, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, wanted, err)
        return folder.name

    def test_told_to_end_it_leaves_nothing(self):
        for signo in signal.SIGTERM, signal.SIGHUP:
            with self.subTest(signo.name):
                self.end_midway(lambda process, signo=signo: process.send_signal(signo), 128 + signo)
                self.assert_nothing_left()

    def test_ended_at_the_terminal_it_leaves_nothing(self):
        """Ctrl-C goes to the process group, so to what runs in the cluster, too."""
        self.end_midway(lambda process: os.killpg(process.pid, signal.SIGINT), 128 + signal.SIGINT)
        self.assert_nothing_left()

    def test_killed_it_leaves_no_process(self):
        self.end_midway(lambda process: process.kill(), -signal.SIGKILL)
        wait_until(lambda: not self.processes(), "no process of the cluster left")

    def test_with_limits_of_memory_and_processes_in_cgroups_it_leaves_no_cgroup(self):
        variables = {"CLUSTER_MEMORY": "1", "CLUSTER_PROCTRACK": "proctrack/cgroup"}
        words = [f"{name}={value}" for name, value in variables.items()]
        probe = self.start_cluster("env", *words, CLUSTER, "true", stderr=subprocess.PIPE, text=True)
        _, err = probe.communicate(timeout=LIMIT)
        if probe.returncode == 77:
            self.skipTest(err.strip())
        name = self.end_midway(lambda process: process.terminate(), 128 + signal.SIGTERM, **variables)
        self.assert_nothing_left([name])

    def test_a_campaign_that_is_told_to_end_leaves_no_cluster(self):
        for act in (lambda process: process.terminate()), (lambda process: os.killpg(process.pid, signal.SIGINT)):
            process = self.start_cluster(sys.executable, CAMPAIGN, "--times=20", "--torchrun-times=0", "--only=scancel", stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL)
            wait_until(lambda: any("slurmstepd" in words for words in self.processes()), "a step of the campaign",
                       LIMIT, pause=0)  # each step is short
            act(process)
            self.assertEqual(process.wait(LIMIT), 1)
            self.assert_nothing_left()
            self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    main()
