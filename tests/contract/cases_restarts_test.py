"""Acceptance case 25, the latency of a start, a restart and an end; and how often and how soon a
job is restarted. Case 24 is in tests/jobs/jobs_test.py, case 26 in cases_gloo_test.py."""

import os
import signal
import time

from cases_support import CaseTest, main, told, with_variables

TURNS = 20
# What torchrun takes, which a loaded machine does not make ddprun take; the figures are printed.
FIRST_WORKER_S, RESTART_S, EXIT_S = 1.2, 1.0, 0.5


class CaseLatency(CaseTest):
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


class CaseRestartPace(CaseTest):
    """A crash loop does not spin, and a job that goes on has its budget back."""

    def starts(self, count, *flags, expected=1):
        """Runs a worker that fails at once; the times between its starts, in seconds."""
        script = self.worker("#!/bin/sh\necho $TORCHELASTIC_RESTART_COUNT > {fifo}\nexit 4\n")
        job = self.start(*flags, script, env=with_variables())
        times = []
        for number in range(count):
            self.assertEqual(self.heard(1), [str(number)])
            times.append(time.monotonic())
        self.assertEqual(job.finish()[0], expected)
        job.wait_gone()
        return [later - earlier for earlier, later in zip(times, times[1:])]

    def test_backoff_grows(self):
        gaps = self.starts(6, "--max-restarts=5", "--restart-backoff=0.2:1")
        print("pauses: " + ", ".join(f"{gap * 1e3:.0f} ms" for gap in gaps))
        # Jitter takes off half at most; a loaded machine only adds.
        for gap, least in zip(gaps, (0, 0.1, 0.2, 0.4, 0.5)):
            self.assertGreaterEqual(gap, least)
        self.assertLess(gaps[0], gaps[-1])

    def test_without_backoff_there_is_no_pause(self):
        gaps = self.starts(6, "--max-restarts=5")
        self.assertLess(told("restart", gaps), 0.5)

    def test_a_window_bounds_a_crash_loop(self):
        self.starts(3, "--max-restarts=2", "--restart-window=60", "--restart-backoff=0.1:0.1")

    def test_a_window_gives_the_budget_back(self):
        # Each attempt outlives the window, which is the case itself; then the job ends well.
        script = self.script("#!/bin/sh\ntest $TORCHELASTIC_RESTART_COUNT = 3 && exit 0\n"
                             "sleep 0.7\nexit 4\n")
        code, _, err = self.run_job("--max-restarts=1", "--restart-window=0.5",
                                    "--restart-backoff=0.1:0.1", script, env=with_variables())
        self.assertEqual(code, 0, err)

    def test_a_window_brings_a_backoff(self):
        gaps = self.starts(3, "--max-restarts=2", "--restart-window=60")
        self.assertGreaterEqual(gaps[1], 0.5)


if __name__ == "__main__":
    main()
