"""Acceptance cases 45, 54, 55, 57 and 58: several nodes, and several jobs on one host. Cases 44 and
56 are in tests/jobs/nodes_test.py."""

import os
import signal
import time

from cases_support import PRINT_ENV, CaseTest, free_port, main, parse_env, told, wait_until

WAITS = "#!/bin/sh\necho $RANK > {fifo}\nexec sleep 1000\n"


class CaseNodes(CaseTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()

    def c10d(self, *args, run_id="job", **options):
        return self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-id={run_id}",
                          f"--rdzv-endpoint=127.0.0.1:{self.port}", *args, **options)

    def static(self, node_rank, *args):
        return self.start("--nnodes=2", f"--node-rank={node_rank}", "--master-addr=127.0.0.1",
                          f"--master-port={self.port}", *args)

    def kinds(self, *args):
        """Two nodes of either kind, each with a port of its own."""
        for kind in "c10d", "static":
            self.port = free_port()
            with self.subTest(kind):
                yield [self.c10d(*args) if kind == "c10d" else self.static(node, *args)
                       for node in range(2)]

    def finish(self, jobs):
        results = [job.finish() for job in jobs]
        for job in jobs:
            job.wait_gone()
        return results

    def owner(self, jobs, rank):
        """The node that has this rank, and the other one."""
        found = wait_until(lambda: next((job for job in jobs if job.worker(rank)), None), rank)
        return found, next(job for job in jobs if job is not found)

    def test_case_45_any_start_order(self):
        script = self.script(PRINT_ENV)
        for first_is_host in True, False:
            with self.subTest(first_is_host=first_is_host):
                self.port = free_port()
                first = self.c10d(f"--rdzv-conf=is_host={int(first_is_host)}", script)
                wait_until(lambda: len(first.children_of(first.pid)) == 1, "the first node's agent")
                second = self.c10d(f"--rdzv-conf=is_host={int(not first_is_host)}", script)
                results = self.finish([first, second])
                self.assertEqual([code for code, _, _ in results], [0, 0], results)
                envs = [parse_env(out) for _, out, _ in results]
                self.assertEqual({env["GROUP_RANK"] for env in envs}, {"0", "1"})
                self.assertEqual({env["RANK"] for env in envs}, {"0", "1"})
                self.assertEqual({env["TORCHELASTIC_RUN_ID"] for env in envs}, {"job"})
                self.assertEqual(len({env["MASTER_ADDR"] + env["MASTER_PORT"] for env in envs}), 1)

    def test_case_54_a_node_that_runs_is_stopped(self):
        for jobs in self.kinds(self.worker(WAITS)):
            self.heard(2)
            loser, other = self.owner(jobs, 1)
            begin = time.monotonic()
            os.kill(loser.worker(1), signal.SIGKILL)
            code, _, err = other.finish()
            told("a death there to the end here", [time.monotonic() - begin])
            self.assertEqual((code, loser.finish()[0]), (1, 1))
            self.assertRegex(err, r"rank 1 .*SIGKILL")

    def test_case_54_a_node_that_is_finished_ends_too(self):
        script = "#!/bin/sh\necho $RANK > {fifo}\ntest $RANK = 0 && exit 0\nexec sleep 1000\n"
        for jobs in self.kinds(self.worker(script)):
            self.heard(2)
            loser, finished = self.owner(jobs, 1)
            wait_until(lambda: finished.worker(0) is None, "rank 0's end")
            begin = time.monotonic()
            os.kill(loser.worker(1), signal.SIGKILL)
            self.assertEqual(finished.finish()[0], 1)
            told("a death there to the end of a finished node", [time.monotonic() - begin])
            self.assertEqual(loser.finish()[0], 1)

    def test_case_55_a_signal_to_a_finished_node(self):
        script = "#!/bin/sh\necho $RANK > {fifo}\ntest $RANK = 0 && exit 0\nexec sleep 1000\n"
        for jobs in self.kinds(self.worker(script)):
            self.heard(2)
            runs, waits = self.owner(jobs, 1)
            wait_until(lambda: waits.worker(0) is None, "rank 0's end")
            code, _, _, seconds = self.stop(waits)
            told("signal to the end of a node that waits", [seconds])
            self.assertEqual(code, 1)
            self.assertLess(seconds, 1)
            self.assertEqual(runs.finish()[0], 1)

    def test_case_57_no_master(self):
        begin = time.monotonic()
        job = self.start("--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1",
                         f"--master-port={self.port}", "--rdzv-conf=timeout=4", "/bin/true")
        code, _, err = job.finish()
        seconds = time.monotonic() - begin
        print(f"timeout=4: over after {seconds:.3f} s")
        self.assertEqual(code, 1)
        self.assertIn(f"127.0.0.1:{self.port}", err)
        self.assertIn("timeout", err)
        self.assertGreaterEqual(seconds, 3.9)
        self.assertLess(seconds, 9)

    def test_case_58_two_jobs_with_default_options(self):
        gate = self.fifo("gate")
        script = self.worker(PRINT_ENV + "echo $RANK > {fifo}\nread word < %s\n" % gate)
        jobs = [self.start(script) for _ in range(2)]
        self.heard(2)  # both run at once
        with open(gate, "w") as file:
            file.write("go\ngo\n")
            file.flush()
            results = self.finish(jobs)
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        self.assertEqual(len({parse_env(out)["MASTER_PORT"] for _, out, _ in results}), 2)

    def test_case_58_one_endpoint_and_two_jobs_of_one_node(self):
        flags = "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}"
        script = self.worker(WAITS)
        long = self.start(*flags, "--rdzv-id=long", script)
        self.heard(1)
        self.assertEqual(self.start(*flags, "--rdzv-id=short", "/bin/true").finish()[0], 0)
        self.assertIsNotNone(long.worker(0))
        self.stop(long)

    def test_case_58_one_endpoint_and_two_ids(self):
        # A rendezvous inside an agent serves that agent's job alone: the other one is refused at
        # once, where torchrun would have it die when the first ends.
        script = self.worker(WAITS)
        long = [self.c10d(script, run_id="long") for _ in range(2)]
        self.heard(2)
        for _ in range(2):
            code, _, err = self.c10d("/bin/true", run_id="short").finish()
            self.assertEqual(code, 1)
            self.assertIn("it serves another job than the one with rdzv_id=short", err)
        self.assertEqual([job.process.poll() for job in long], [None, None])
        self.stop(long[0])
        self.assertEqual(long[1].finish()[0], 1)
        short = [self.c10d("/bin/true", run_id="short") for _ in range(2)]
        self.assertEqual([code for code, _, _ in self.finish(short)], [0, 0])


if __name__ == "__main__":
    main()
