"""Several nodes, and several jobs on one host: agents that meet over loopback."""

import os
import re
import signal
import socket
import time

from machine import free_port, wait_until
from support import DEAF, PRINT_ENV, WAITING, JobTest, main, parse_env, told, with_variables

FIRST_RANK_ENDS = "#!/bin/sh\necho $RANK > {fifo}\ntest $RANK = 0 && exit 0\nexec sleep 1000\n"


class NodesTest(JobTest):
    """Gives each test a port to meet at."""

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
                yield [self.c10d(*args) if kind == "c10d" else self.static(node, *args) for node in range(2)]

    def finish(self, jobs):
        results = [job.finish() for job in jobs]
        for job in jobs:
            job.wait_gone()
        return results

    def environments(self, jobs):
        """The variables of all workers of jobs that run PRINT_ENV, by rank."""
        results = self.finish(jobs)
        self.assertEqual([code for code, _, _ in results], [0] * len(jobs), results)
        return sorted((parse_env(line) for _, out, _ in results for line in out.splitlines()),
                      key=lambda env: int(env["RANK"]))

    def owner(self, jobs, rank):
        """The node that has this rank, and the other one."""
        found = wait_until(lambda: next((job for job in jobs if job.worker(rank)), None), rank)
        return found, next(job for job in jobs if job is not found)


class Nodes(NodesTest):
    def test_case_44_static(self):
        script = self.script(PRINT_ENV)
        # Before the host is there.
        second = self.static(1, "--nproc-per-node=2", "--role=b", script)
        first = self.static(0, "--role=a", script)
        envs = self.environments([first, second])
        self.assertEqual([(env["RANK"], env["GROUP_RANK"], env["ROLE_NAME"], env["ROLE_RANK"]) for env in envs],
                         [("0", "0", "a", "0"), ("1", "1", "b", "0"), ("2", "1", "b", "1")])
        self.assertEqual({(env["WORLD_SIZE"], env["MASTER_ADDR"], env["MASTER_PORT"]) for env in envs},
                         {("3", "127.0.0.1", str(self.port))})

    def test_case_45_c10d(self):
        script = self.script(PRINT_ENV)
        envs = self.environments([self.c10d("--nproc-per-node=2", script) for _ in range(2)])
        self.assertEqual([env["RANK"] for env in envs], ["0", "1", "2", "3"])
        self.assertEqual([env["GROUP_RANK"] for env in envs], ["0", "0", "1", "1"])
        self.assertEqual({env["TORCHELASTIC_RUN_ID"] for env in envs}, {"job"})
        self.assertEqual(len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in envs}), 1)

    def test_case_45_any_start_order(self):
        script = self.script(PRINT_ENV)
        for first_is_host in True, False:
            with self.subTest(first_is_host=first_is_host):
                self.port = free_port()
                first = self.c10d(f"--rdzv-conf=is_host={int(first_is_host)}", script)
                wait_until(lambda: len(first.children_of(first.pid)) == 1, "the first node's agent")
                second = self.c10d(f"--rdzv-conf=is_host={int(not first_is_host)}", script)
                envs = self.environments([first, second])
                self.assertEqual([env["RANK"] for env in envs], ["0", "1"])
                self.assertEqual({env["GROUP_RANK"] for env in envs}, {"0", "1"})
                self.assertEqual({env["TORCHELASTIC_RUN_ID"] for env in envs}, {"job"})
                self.assertEqual(len({env["MASTER_ADDR"] + env["MASTER_PORT"] for env in envs}), 1)

    def test_case_47_a_failure_restarts_all_nodes_with_one_count(self):
        script = self.worker('#!/bin/sh\necho "$RANK $TORCHELASTIC_RESTART_COUNT" > {fifo}\n'
                             'test "$TORCHELASTIC_RESTART_COUNT" = 2 && exit 0\nexec sleep 1000\n')
        for jobs in self.kinds("--max-restarts=3", script):
            for attempt in range(2):
                self.assertEqual(sorted(self.heard(2)), [f"0 {attempt}", f"1 {attempt}"])
                loser, _ = self.owner(jobs, attempt)
                os.kill(loser.worker(attempt), signal.SIGKILL)
            self.assertEqual(sorted(self.heard(2)), ["0 2", "1 2"])
            self.assertEqual([code for code, _, _ in self.finish(jobs)], [0, 0])

    def test_case_54_a_node_that_runs_is_stopped(self):
        for jobs in self.kinds(self.worker(WAITING)):
            self.heard(2)
            loser, other = self.owner(jobs, 1)
            begin = time.monotonic()
            os.kill(loser.worker(1), signal.SIGKILL)
            code, _, err = other.finish()
            told("a death there to the end here", [time.monotonic() - begin])
            self.assertEqual((code, loser.finish()[0]), (1, 1))
            self.assertRegex(err, r"rank 1 .* was killed by SIGKILL")

    def test_case_54_a_node_that_is_finished_ends_too(self):
        for jobs in self.kinds(self.worker(FIRST_RANK_ENDS)):
            self.heard(2)
            loser, finished = self.owner(jobs, 1)
            wait_until(lambda: finished.worker(0) is None, "rank 0's end")
            begin = time.monotonic()
            os.kill(loser.worker(1), signal.SIGKILL)
            self.assertEqual(finished.finish()[0], 1)
            told("a death there to the end of a finished node", [time.monotonic() - begin])
            self.assertEqual(loser.finish()[0], 1)

    def test_case_55_a_signal_to_a_finished_node(self):
        took = []
        for _ in range(2):
            for jobs in self.kinds(self.worker(FIRST_RANK_ENDS)):
                self.heard(2)
                runs, waits = self.owner(jobs, 1)
                wait_until(lambda: waits.worker(0) is None, "rank 0's end")
                code, _, _, seconds = self.stop(waits)
                took.append(seconds)
                self.assertEqual(code, 1)
                self.assertEqual(runs.finish()[0], 1)
        self.assertLess(told("signal to the end of a node that waits", took), 1)

    def test_case_56_a_missing_peer(self):
        self.refused(1, ["1 of 2", "join_timeout"], "--nnodes=2", "--rdzv-backend=c10d",
                     f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-conf=join_timeout=1", "/bin/true")

    def test_endpoint_unreachable(self):
        with socket.socket() as unused:  # bound, not listening: connections are refused
            unused.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{unused.getsockname()[1]}"
            self.refused(1, [endpoint, "read_timeout"], "--nnodes=2", "--rdzv-backend=c10d",
                         f"--rdzv-endpoint={endpoint}", "--rdzv-conf=is_host=0,read_timeout=1", "/bin/true")

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
        self.assertLess(seconds, 20)  # without the flag it would be a minute

    def test_a_killed_agent_is_noticed_at_once(self):
        # No silence is noticed within the test.
        flags = "--rdzv-conf=keep_alive_interval=600", self.worker(WAITING)
        for victim_hosts in False, True:
            with self.subTest(victim_hosts=victim_hosts):
                self.port = free_port()
                jobs = [self.c10d(*flags) for _ in range(2)]
                self.heard(2)
                host = wait_until(lambda: next((job for job in jobs if job.listens(self.port)), None), "the rendezvous")
                guest = next(job for job in jobs if job is not host)
                victim, survivor = (host, guest) if victim_hosts else (guest, host)
                os.kill(victim.agent(), signal.SIGKILL)
                code, _, err = survivor.finish()
                self.assertEqual(code, 1, err)
                self.assertNotEqual(err, "")
                victim.finish()
                for job in jobs:
                    job.wait_gone()

    def test_a_wrong_token_is_refused(self):
        right, wrong = (with_variables(DDPRUN_TOKEN=token) for token in ("open-sesame", "open-barley"))
        host = self.c10d("--rdzv-conf=join_timeout=60", "/bin/true", env=right)
        wait_until(lambda: host.listens(self.port), "the rendezvous")
        code, _, err = self.c10d("/bin/true", env=wrong).finish()
        self.assertEqual(code, 1)
        self.assertIn("token", err)
        self.assertNotIn("open-", err)
        self.assertIsNone(host.process.poll())
        guest = self.c10d("/bin/true", env=right)
        self.assertEqual([code for code, _, _ in self.finish([host, guest])], [0, 0])


class SeveralJobs(NodesTest):
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
        script = self.worker(WAITING)
        long = self.start(*flags, "--rdzv-id=long", script)
        self.heard(1)
        self.assertEqual(self.start(*flags, "--rdzv-id=short", "/bin/true").finish()[0], 0)
        self.assertIsNotNone(long.worker(0))
        self.stop(long)

    def test_case_58_one_endpoint_and_two_ids(self):
        # A rendezvous inside an agent serves that agent's job alone. The other one is refused at
        # once; torchrun would have it die when the first ends.
        script = self.worker(WAITING)
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


class Waits(NodesTest):
    """The lines that a log file gets while a node waits."""

    def lines_of(self, job, count, pattern):
        """The first `count` lines of its stderr that have the pattern, with the seconds from its
        start to each."""
        begin, found = time.monotonic(), []
        for line in job.process.stderr:
            if re.search(pattern, line):
                found.append((line, time.monotonic() - begin))
            if len(found) == count:
                return found
        self.fail(f"the job ended: {found}")

    def test_a_file_is_told_for_what_a_node_waits(self):
        """Once after 5 s, and 10 s later; not by each second, and not with --quiet."""
        quiet = self.c10d("--quiet", "--no-python", "true")
        self.port = free_port()
        job = self.c10d("--no-python", "true")
        (first, at), (second, later) = self.lines_of(job, 2, "waiting")
        self.assertRegex(first, r"ddprun: waiting for nodes at 127\.0\.0\.1:\d+ for 5 s: have 1 of 2 nodes, giving up in \d+ s")
        self.assertRegex(second, r"for 15 s: have 1 of 2 nodes")
        for one in job, quiet:
            one.process.send_signal(signal.SIGTERM)
        self.assertNotIn("waiting", quiet.finish()[2])
        job.finish()

    def test_a_file_is_told_that_no_host_answers(self):
        job = self.static(1, "--no-python", "true")
        ((line, _),) = self.lines_of(job, 1, "waiting")
        self.assertRegex(line, r"waiting for nodes at 127\.0\.0\.1:\d+ for 5 s: no host has answered yet, giving up in \d+ s: "
                               r"\S*127\.0\.0\.1:\d+: .*Connection refused\n$")
        job.process.send_signal(signal.SIGTERM)
        job.finish()

    def test_a_file_is_told_that_a_host_takes_connections_and_says_nothing(self):
        with socket.create_server(("127.0.0.1", self.port)):
            job = self.c10d("--no-python", "true")
            ((line, _),) = self.lines_of(job, 1, "waiting")
        self.assertRegex(line, r"for 5 s: no host has answered yet, giving up in \d+ s: .*this host could not serve the endpoint itself: "
                               rf".*{self.port}.* in use")
        job.process.send_signal(signal.SIGTERM)
        job.finish()

    def test_a_file_is_told_which_workers_do_not_end(self):
        job = self.start("--nproc-per-node=2", self.worker(DEAF))
        self.heard(2)
        job.process.send_signal(signal.SIGTERM)
        ((line, _),) = self.lines_of(job, 1, "waiting")
        self.assertRegex(line, r"waiting for 5 s: 2 of 2 workers have not ended after SIGTERM, ranks 0-1; SIGKILL in 2\d s")
        job.process.send_signal(signal.SIGTERM)
        job.finish()

    def test_a_rank_that_leaves_the_others_alone_is_told_once(self):
        script = self.worker("#!/bin/sh\ntest $RANK = 2 && exit 0\necho $RANK > {fifo}\nexec sleep 1000\n")
        job = self.start("--nproc-per-node=4", script, env=with_variables(OMP_NUM_THREADS="1"))
        self.heard(3)
        ((line, at),) = self.lines_of(job, 1, "still run")
        self.assertEqual(line, "ddprun: rank 2 ended with 0 10 s ago; ranks 0-1,3 still run\n")
        self.assertGreater(at, 8)
        job.process.send_signal(signal.SIGTERM)
        self.assertNotIn("still run", job.finish()[2])


if __name__ == "__main__":
    main()
