"""Jobs whose number of nodes changes: agents that meet over loopback, come late, are killed, or are told to leave."""

import os
import signal
import time

from machine import free_port, wait_until
from support import JobTest, main, told, with_variables

# Says who it is, and runs until it is told to end.
WORKER = """#!/bin/sh
trap 'exit 0' TERM
echo "$RANK/$WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT at $MASTER_ADDR:$MASTER_PORT" > {fifo}
while :; do sleep 1000 & wait; done
"""
# Ends well when the gate is opened.
UNTIL_TOLD = "#!/bin/sh\necho \"$RANK/$WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT at x:1\" > {fifo}\nread word < %s\n"


class ElasticTest(JobTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()

    def node(self, nnodes, is_host, *args, conf="last_call_timeout=1", **options):
        return self.start(f"--nnodes={nnodes}", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint=127.0.0.1:{self.port}",
                          f"--rdzv-conf=is_host={int(is_host)},{conf}", *args, **options)

    def nodes(self, count, nnodes, *args, **options):
        """The first of them hosts the rendezvous, so it has node rank 0."""
        return [self.node(nnodes, number == 0, *args, **options) for number in range(count)]

    def world(self, size):
        """Waits for the workers of a round, one a node; (restarts, master)."""
        lines = sorted(self.heard(size))
        self.assertEqual([line.split()[0] for line in lines], [f"{rank}/{size}" for rank in range(size)], lines)
        (rest,) = {tuple(line.split()[1:]) for line in lines}
        return int(rest[1]), rest[3]

    def stop_all(self, jobs):
        for job in jobs:
            if job.process.poll() is None:
                job.process.send_signal(signal.SIGTERM)
        for job in jobs:
            job.finish()
            job.wait_gone()


class Grows(ElasticTest):
    def test_case_50_a_newcomer_is_taken_in(self):
        logs = self.folder / "logs"
        flags = "-r", "3", f"--log-dir={logs}"
        first = self.node("1:3", True, *flags, self.worker(WORKER))
        self.assertEqual(self.world(1)[0], 0)
        begin = time.monotonic()
        second = self.node("1:3", False, self.worker(WORKER))
        self.assertEqual(self.world(2)[0], 0)
        told("a newcomer's start to the workers of the larger world", [time.monotonic() - begin])
        self.assertEqual(sorted(path.name for path in logs.glob("job_*/attempt_*")), ["attempt_0", "attempt_1"])
        self.stop_all([first, second])

    def test_newcomers_wait_for_the_interval(self):
        conf = "last_call_timeout=1,resize_wait=1,resize_interval=3"
        jobs = [self.node("1:3", True, self.worker(WORKER), conf=conf)]
        self.world(1)
        jobs.append(self.node("1:3", False, self.worker(WORKER), conf=conf))
        self.world(2)
        begin = time.monotonic()
        jobs.append(self.node("1:3", False, self.worker(WORKER), conf=conf))
        self.assertEqual(self.world(3)[0], 0)
        self.assertGreater(time.monotonic() - begin, 2)
        self.stop_all(jobs)

    def test_the_first_round_starts_at_once_when_it_is_full(self):
        jobs = self.nodes(2, "1:2", self.worker(WORKER), conf="last_call_timeout=600")
        self.assertEqual(self.world(2)[0], 0)
        self.stop_all(jobs)

    def test_sizes_are_multiples_of_the_unit(self):
        jobs = self.nodes(3, "2:4", "--node-unit=2", self.worker(WORKER))
        self.assertEqual(self.world(2)[0], 0)
        jobs.append(self.node("2:4", False, "--node-unit=2", self.worker(WORKER)))
        self.assertEqual(self.world(4)[0], 0)
        self.stop_all(jobs)


class Shrinks(ElasticTest):
    def test_case_48_a_lost_node(self):
        host, other = self.nodes(2, "1:2", "--max-restarts=3", self.worker(WORKER), conf="last_call_timeout=600")
        self.world(2)
        begin = time.monotonic()
        os.kill(other.agent(), signal.SIGKILL)
        self.assertEqual(self.world(1)[0], 1)
        told("a killed agent to the workers of the smaller world", [time.monotonic() - begin])
        self.assertNotEqual(other.finish()[0], 0)
        self.stop_all([host])

    def test_a_node_that_is_told_to_end_leaves_the_others_running(self):
        host, other = self.nodes(2, "1:2", self.worker(WORKER))
        self.world(2)
        begin = time.monotonic()
        other.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.world(1)[0], 0, "no restart is spent; there was none")
        told("SIGTERM to one agent to the workers of the smaller world", [time.monotonic() - begin])
        self.assertEqual(other.finish()[0], 1)
        code, _, err, _ = self.stop(host)
        self.assertEqual(code, 1)
        self.assertIn("no restart is spent", err)

    def test_the_host_of_the_rendezvous_that_is_told_to_end_ends_the_job(self):
        host, other = self.nodes(2, "1:2", self.worker(WORKER))
        self.world(2)
        host.process.send_signal(signal.SIGTERM)
        code, _, err = other.finish()
        self.assertEqual(code, 1)
        self.assertIn("received SIGTERM", err)
        self.assertEqual(host.finish()[0], 1)

    def test_the_last_node_that_leaves_ends_the_job(self):
        host, other = self.nodes(2, "2:3", self.worker(WORKER))
        self.world(2)
        other.process.send_signal(signal.SIGTERM)
        self.assertEqual([job.finish()[0] for job in (host, other)], [1, 1])

    def test_seats_are_kept(self):
        host, second, third = self.nodes(3, "2:3", "--max-restarts=9", self.worker(WORKER))
        self.world(3)
        by_rank = {rank: job for rank in (1, 2) for job in (second, third)
                   if wait_until(lambda: second.worker(rank) or third.worker(rank), rank) and job.worker(rank)}
        os.kill(by_rank[2].agent(), signal.SIGKILL)
        self.world(2)
        self.assertIsNotNone(by_rank[1].worker(1))
        self.assertIsNotNone(host.worker(0))
        newcomer = self.node("2:3", False, "--max-restarts=9", self.worker(WORKER))
        self.world(3)
        self.assertIsNotNone(by_rank[1].worker(1))
        self.assertIsNotNone(newcomer.worker(2))
        self.stop_all([host, by_rank[1], newcomer])


class Spares(ElasticTest):
    def test_case_49_a_node_is_replaced(self):
        host, lost = self.nodes(2, "2", "--max-restarts=3", self.worker(WORKER))
        self.world(2)
        os.kill(lost.agent(), signal.SIGKILL)
        lost.finish()
        new = self.node("2", False, "--max-restarts=3", self.worker(WORKER))
        self.assertEqual(self.world(2)[0], 1)
        self.stop_all([host, new])

    def test_case_53_a_spare_takes_over(self):
        jobs = self.nodes(2, "2", "--max-restarts=3", self.worker(WORKER))
        self.world(2)
        spare = self.node("2", False, "--max-restarts=3", self.worker(WORKER))
        wait_until(lambda: spare.children_of(spare.pid), "the spare's agent")
        begin = time.monotonic()
        os.kill(jobs[1].agent(), signal.SIGKILL)
        self.assertEqual(self.world(2)[0], 1)
        seconds = told("a killed agent to the workers of the spare", [time.monotonic() - begin])
        self.assertLess(seconds, 2)
        self.assertIsNotNone(spare.worker(1))
        jobs[1].finish()
        self.stop_all([jobs[0], spare])

    def test_case_53_a_spare_ends_well_with_the_job(self):
        gate = self.fifo("gate")
        script = self.worker(UNTIL_TOLD % gate)
        jobs = self.nodes(2, "1:2", script)
        self.world(2)
        spare = self.node("1:2", False, script)
        wait_until(lambda: spare.is_connected_to(self.port), "the spare at the rendezvous")
        with open(gate, "w") as file:
            file.write("go\ngo\n")
        self.assertEqual([job.finish()[0] for job in (*jobs, spare)], [0, 0, 0])
        spare.wait_gone()


class Differ(ElasticTest):
    def test_another_number_of_nodes_is_refused_with_both(self):
        host = self.node("2", True, self.worker(WORKER))
        wait_until(lambda: host.listens(self.port), "the rendezvous")
        code, _, err = self.node("3", False, "/bin/true").finish()
        self.assertEqual(code, 1)
        self.assertIn("--nnodes=3", err)
        self.assertIn("--nnodes=2", err)
        guest = self.node("2", False, self.worker(WORKER))
        self.world(2)
        guest.process.send_signal(signal.SIGTERM)
        guest.finish()
        code, _, err = host.finish()
        self.assertIn("--nnodes=3", err)

    def test_static_has_one_number(self):
        self.refused(1, ["--nnodes=1:2", "--rdzv-backend=c10d"], "--nnodes=1:2", "/bin/true")
        self.refused(1, ["--node-unit=4", "--nnodes=1:3"], "--nnodes=1:3", "--node-unit=4", "--rdzv-backend=c10d", "/bin/true",
                     env=with_variables())


if __name__ == "__main__":
    main()
