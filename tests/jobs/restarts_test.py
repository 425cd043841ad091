"""How often and how soon a job is restarted, and with what."""

import os
import signal

from support import JobTest, main, told, with_variables


class Restarts(JobTest):
    def test_case_24_restarts_are_counted(self):
        script = self.script("#!/bin/sh\necho $TORCHELASTIC_RESTART_COUNT\nexit 4\n")
        code, out, _ = self.run_job("--max-restarts=2", script)
        self.assertEqual((code, out), (1, "0\n1\n2\n"))
        script = self.script('#!/bin/sh\ntest "$TORCHELASTIC_RESTART_COUNT" = 1\n')
        self.assertEqual(self.run_job("--max-restarts=2", script)[0], 0)

    def test_all_workers_are_replaced_by_a_restart(self):
        script = self.worker('#!/bin/sh\necho "$TORCHELASTIC_RESTART_COUNT $RANK $MASTER_PORT" > {fifo}\n'
                             'test "$TORCHELASTIC_RESTART_COUNT" = 1 && exit 0\nexec sleep 60\n')
        job = self.start("--nproc-per-node=2", "--max-restarts=1", script)
        first = [line.split() for line in self.heard(2)]
        os.kill(job.worker(0), signal.SIGKILL)
        second = [line.split() for line in self.heard(2)]
        self.assertEqual(job.finish()[0], 0)
        self.assertEqual({line[0] for line in first}, {"0"})
        self.assertEqual(sorted(line[:2] for line in second), [["1", "0"], ["1", "1"]])
        job.wait_gone()


class SameDeaths(JobTest):
    """Attempts that end in the same way before a step."""

    def attempts(self, text, *flags, name="t.py"):
        script = self.script("import sys\nprint('try', flush=True)\n" + text, name)
        code, out, err = self.run_job(*flags, script, env=with_variables())
        self.assertEqual(code, 1, err)
        return out.count("try"), err

    def test_are_told_once(self):
        count, err = self.attempts("raise ValueError('as ever')\n", "--max-restarts=3")
        self.assertEqual(count, 4)  # as torchrun: another try may help
        self.assertEqual(err.count("all 4 attempts failed in the same way, before a step, with exit code 1: ValueError: as ever"), 1)

    def test_of_a_program_that_cannot_start_end_at_the_third(self):
        for text in ("import no_such_module\n", "eval('1 +')\n",
                     "import argparse\nargparse.ArgumentParser().parse_args(['--no'])\n"):
            with self.subTest(text):
                count, err = self.attempts(text, "--max-restarts=9")
                self.assertEqual(count, 3, err)
                self.assertEqual(err.count("all 3 attempts failed in the same way"), 1, err)
                self.assertIn("that cannot change by another try, so 7 of 9 restarts were not made", err)
                self.assertIn("Root Cause", err)

    def test_are_tried_again_where_the_user_asked_for_a_pause(self):
        count, _ = self.attempts("import no_such_module\n", "--max-restarts=4", "--restart-backoff=0.1:0.1")
        self.assertEqual(count, 5)

    def test_that_differ_are_tried_again_and_not_told(self):
        count, err = self.attempts("import os\n__import__('no_' + os.environ['TORCHELASTIC_RESTART_COUNT'])\n", "--max-restarts=4")
        self.assertEqual(count, 5)
        self.assertNotIn("in the same way", err)

    def test_of_one_attempt_are_not_told(self):
        _, err = self.attempts("raise ValueError('once')\n")
        self.assertNotIn("in the same way", err)


class RestartPace(JobTest):
    """A crash loop does not spin, and a job that goes on has its budget back."""

    def pauses(self, count, *flags):
        """Runs a worker that fails at once so many times. Returns the seconds from the end of one
        to the start of the next. The workers look at the clock themselves. So no pause looks
        shorter than it was, even on a loaded machine."""
        script = self.worker("#!/bin/sh\nbegin=$(date +%s.%N)\n"
                             'echo "$TORCHELASTIC_RESTART_COUNT $begin $(date +%s.%N)" > {fifo}\nexit 4\n')
        code, _, err = self.run_job(*flags, script, env=with_variables())
        self.assertEqual(code, 1, err)
        starts = [line.split() for line in self.heard(count)]
        self.assertEqual([number for number, _, _ in starts], [str(number) for number in range(count)])
        return [float(begin) - float(end) for (_, _, end), (_, begin, _) in zip(starts, starts[1:])]

    def test_backoff_grows(self):
        pauses = self.pauses(6, "--max-restarts=5", "--restart-backoff=0.5:4")
        print("pauses: " + ", ".join(f"{pause * 1e3:.0f} ms" for pause in pauses))
        for pause, least in zip(pauses, (0, 0.25, 0.5, 1, 2)):  # jitter takes off half at most
            self.assertGreaterEqual(pause, least)
        self.assertLess(pauses[0], pauses[-1])

    def test_without_backoff_there_is_no_pause(self):
        # Else it is some 2 s in the middle.
        self.assertLess(told("restart", self.pauses(6, "--max-restarts=5")), 1)

    def test_a_window_bounds_a_crash_loop(self):
        self.pauses(3, "--max-restarts=2", "--restart-window=60", "--restart-backoff=0.1:0.1")

    def test_a_window_gives_the_budget_back(self):
        # Each attempt outlives the window, which is the case itself; then the job ends well.
        script = self.script("#!/bin/sh\ntest $TORCHELASTIC_RESTART_COUNT = 3 && exit 0\nsleep 0.7\nexit 4\n")
        code, _, err = self.run_job("--max-restarts=1", "--restart-window=0.5",
                                    "--restart-backoff=0.1:0.1", script, env=with_variables())
        self.assertEqual(code, 0, err)

    def test_a_window_brings_a_backoff(self):
        self.assertGreaterEqual(self.pauses(3, "--max-restarts=2", "--restart-window=60")[1], 0.5)


if __name__ == "__main__":
    main()
