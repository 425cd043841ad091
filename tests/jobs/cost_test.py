"""The cost of ddprun: the time of a start, a restart and an end; memory and wake-ups while workers
run."""

import os
import pathlib
import signal
import time
import unittest

from machine import state_of, wait_until
from support import SLEEPER, JobTest, main, sanitized, told

TURNS = 20
# torchrun's own times, which a loaded machine does not make ddprun take; the figures are printed.
FIRST_WORKER_S, RESTART_S, EXIT_S = 1.2, 1.0, 0.5
QUIET_S = 2  # how long workers run quietly in case 64: the case itself, not a wait for an event
MEMORY_MIB = 20


class Latency(JobTest):
    def test_case_25_start_and_end(self):
        leave = self.fifo("leave")
        script = self.worker("#!/bin/sh\necho $RANK > {fifo}\nread word < %s\n" % leave)
        starts, ends = [], []
        for _ in range(TURNS):
            begin = time.monotonic()
            job = self.start(script)
            self.heard(1)
            starts.append(time.monotonic() - begin)
            with open(leave, "w") as gate:
                begin = time.monotonic()
                gate.write("go\n")
            code, _, err = job.finish()
            ends.append(time.monotonic() - begin)
            self.assertEqual(code, 0, err)
        self.assertLess(told("launch to first worker", starts), FIRST_WORKER_S)
        self.assertLess(told("last worker to exit", ends), EXIT_S)

    def test_case_25_restart(self):
        script = self.worker("#!/bin/sh\necho $$ > {fifo}\nexec sleep 1000\n")
        job = self.start(f"--max-restarts={TURNS}", script)
        (pid,) = self.heard(1)
        restarts = []
        for _ in range(TURNS):
            begin = time.monotonic()
            os.kill(int(pid), signal.SIGKILL)
            (pid,) = self.heard(1)
            restarts.append(time.monotonic() - begin)
        self.stop(job)
        self.assertLess(told("death to new worker", restarts), RESTART_S)


class Idle(JobTest):
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
        guardian, agent = self.ours
        wait_until(lambda: self.job.children_of(guardian) == [agent], "the end of the look for orphans")
        wait_until(lambda: all(map(sleeps, self.ours)), "the end of what a start brings")
        before = [self.activity(pid) for pid in self.ours]
        time.sleep(QUIET_S)
        after = [self.activity(pid) for pid in self.ours]
        for name, (ticks, switches), (new_ticks, new_switches) in zip(
                ("guardian", "agent"), before, after):
            print(f"{name}: {new_ticks - ticks} CPU ticks and {new_switches - switches} wake-ups "
                  f"in {QUIET_S} s")
            self.assertEqual(new_ticks, ticks)
            # The agent looks for standstills every 5 s, and for slow ranks every 20 s.
            self.assertLessEqual(new_switches - switches, 2)
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


if __name__ == "__main__":
    main()
