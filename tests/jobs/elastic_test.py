"""Jobs whose number of nodes changes: agents that meet over loopback, come late, are killed, or are
told to leave."""

import os
import signal
import subprocess
import time
import unittest

from machine import free_port, wait_until
from support import JobTest, main, told, with_variables

# Says who it is, and runs until it is told to end.
WORKER = """#!/bin/sh
trap 'exit 0' TERM
echo "$RANK/$WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT at $MASTER_ADDR:$MASTER_PORT" > {fifo}
while :; do sleep 1000 & wait; done
"""
OTHER_CLOCK = "--time", "--monotonic", "60"  # a minute ahead, for unshare(1)
# Ends well when the gate is opened.
UNTIL_TOLD = "#!/bin/sh\necho \"$RANK/$WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT at x:1\" > {fifo}\nread word < %s\n"


# A lost node is known by the end of its connection alone.
NOT_BY_SILENCE = "keep_alive_interval=600,last_call_timeout=600"


class ElasticTest(JobTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()

    def node(self, nnodes, is_host, *args, conf="last_call_timeout=1", **options):
        """A node that waits a second for others where it may. Its lease is long: it must not end
        while a busy machine stands still."""
        conf = f"keep_alive_interval=5,{conf}" if "keep_alive" not in conf else conf
        return self.start(f"--nnodes={nnodes}", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint=127.0.0.1:{self.port}",
                          f"--rdzv-conf=is_host={int(is_host)},{conf}", *args, **options)

    def nodes(self, count, nnodes, *args, **options):
        """The first of them hosts the rendezvous, so it has node rank 0. If they are as many as
        there may be, the first round starts with all of them. It does not matter how late they
        come."""
        if str(count) == nnodes.rpartition(":")[2]:
            options.setdefault("conf", "last_call_timeout=600")
        return [self.node(nnodes, number == 0, *args, **options) for number in range(count)]

    def world(self, size):
        """Waits for the workers of a round, one a node; (restarts, master)."""
        lines = sorted(self.heard(size), key=lambda line: int(line.partition("/")[0]))
        self.assertEqual([line.split()[0] for line in lines], [f"{rank}/{size}" for rank in range(size)], lines)
        (rest,) = {tuple(line.split()[1:]) for line in lines}
        return int(rest[1]), rest[3]

    def kill_whole(self, job):
        """Guardian, agent and workers, in one moment; returns when they are gone."""
        job.kill_whole()
        job.process.communicate()

    def stop_all(self, jobs):
        for job in jobs:
            if job.process.poll() is None:
                job.process.send_signal(signal.SIGTERM)
        for job in jobs:
            job.finish()
            job.wait_gone()


class Forms(ElasticTest):
    def test_case_46_many_nodes_that_are_ready(self):
        for count in 2, 8, 32:
            begin = time.monotonic()
            jobs = self.nodes(count, str(count), self.worker(WORKER))
            self.world(count)
            told(f"{count} nodes from the first start to the last worker", [time.monotonic() - begin])
            self.stop_all(jobs)
            self.port = free_port()


class Grows(ElasticTest):
    def test_case_50_a_newcomer_is_taken_in(self):
        self.check_newcomer([], [])

    def test_case_50_a_newcomer_that_sorts_first(self):
        # torchrun gives ranks in the order of addresses; here who stays keeps its seat.
        self.check_newcomer(["--local-addr=127.0.0.2"], ["--local-addr=127.0.0.1"])

    def check_newcomer(self, flags_of_first, flags_of_second):
        logs = self.folder / "logs"
        flags = "-r", "3", f"--log-dir={logs}"
        first = self.node("1:3", True, *flags, *flags_of_first, self.worker(WORKER))
        self.assertEqual(self.world(1)[0], 0)
        begin = time.monotonic()
        second = self.node("1:3", False, *flags_of_second, self.worker(WORKER))
        self.assertEqual(self.world(2)[0], 0)
        self.assertIsNotNone(first.worker(0))
        told("a newcomer's start to the workers of the larger world", [time.monotonic() - begin])
        self.assertEqual(sorted(path.name for path in logs.glob("job_*/attempt_*")), ["attempt_0", "attempt_1"])
        self.stop_all([first, second])

    def test_after_a_resize_the_report_quotes_the_worker_that_failed(self):
        flags = "-r", "3", f"--log-dir={self.folder / 'logs'}"
        gate = self.fifo("gate")
        fails = f"test $WORLD_SIZE = 1 && exec sleep 1000\nread word < {gate}\necho of round 2 >&2\nexit 7\n"
        script = self.worker(WORKER.partition("while")[0] + fails)
        first = self.node("1:2", True, *flags, script)
        self.world(1)
        second = self.node("1:2", False, self.worker(WORKER, "second.sh"))
        self.world(2)
        with open(gate, "w") as file:
            file.write("go\n")
        code, _, err = first.finish()
        self.assertEqual(code, 1)
        self.assertIn("of round 2", err)
        self.stop_all([second])

    def test_newcomers_wait_for_the_interval(self):
        conf = "last_call_timeout=1,resize_wait=1,resize_interval=6"
        jobs = [self.node("1:3", True, self.worker(WORKER), conf=conf)]
        self.world(1)
        begin = time.monotonic()  # before the resize that the interval counts from
        jobs.append(self.node("1:3", False, self.worker(WORKER), conf=conf))
        self.world(2)
        jobs.append(self.node("1:3", False, self.worker(WORKER), conf=conf))
        self.assertEqual(self.world(3)[0], 0)
        self.assertGreater(time.monotonic() - begin, 6)
        self.stop_all(jobs)

    def test_the_first_round_starts_at_once_when_it_is_full(self):
        jobs = self.nodes(2, "1:2", self.worker(WORKER))
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
        host, other = self.nodes(2, "1:2", "--max-restarts=3", self.worker(WORKER), conf=NOT_BY_SILENCE)
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

    def test_the_next_round_waits_for_the_workers_of_a_node_that_leaves(self):
        slow = self.worker("""#!/bin/sh
trap 'trap "" TERM; echo saving > {fifo}; sleep 1; echo saved > {fifo}; exit 0' TERM
echo ready > {fifo}
while :; do sleep 1000 & wait; done
""", "slow.sh")
        host = self.node("1:2", True, self.worker(WORKER), conf="last_call_timeout=600")
        other = self.node("1:2", False, slow)
        self.heard(2)
        other.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.heard(2), ["saving", "saved"])
        self.assertEqual(self.world(1)[0], 0)
        other.finish()
        self.stop_all([host])

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

    def test_a_node_that_is_told_to_end_before_the_first_round_harms_nobody(self):
        host = self.node("3", True, self.worker(WORKER))
        wait_until(lambda: host.listens(self.port), "the rendezvous")
        leaving, terminal = self.on_a_terminal("3", False, self.worker(WORKER), start=self.node)
        self.read_until(terminal, "of 3 nodes")
        leaving.process.send_signal(signal.SIGTERM)
        leaving.finish()
        others = [self.node("3", False, self.worker(WORKER)) for _ in range(2)]
        self.world(3)
        self.stop_all([host, *others])

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

    def test_case_51_the_node_of_rank_0_is_lost(self):
        """The rendezvous lives on another one."""
        host, lost, other = (self.node("2:3", rank == 2, "--max-restarts=3", f"--node-rank={rank}", self.worker(WORKER),
                                       conf="last_call_timeout=600") for rank in (2, 0, 1))
        self.world(3)
        self.assertIsNotNone(lost.worker(0))
        os.kill(lost.agent(), signal.SIGKILL)
        self.assertEqual(self.world(2)[0], 1)  # world() wants one master for all
        lost.finish()
        self.stop_all([host, other])


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
        jobs = self.nodes(2, "2", "--max-restarts=3", self.worker(WORKER), conf=NOT_BY_SILENCE)
        self.world(2)
        spare = self.node("2", False, "--max-restarts=3", self.worker(WORKER))
        wait_until(lambda: spare.children_of(spare.pid), "the spare's agent")
        begin = time.monotonic()
        os.kill(jobs[1].agent(), signal.SIGKILL)
        self.assertEqual(self.world(2)[0], 1)
        told("a killed agent to the workers of the spare", [time.monotonic() - begin])
        self.assertIsNotNone(spare.worker(1))
        jobs[1].finish()
        self.stop_all([jobs[0], spare])

    def test_case_53_a_spare_ends_well_with_the_job(self):
        gate = self.fifo("gate")
        script = self.worker(UNTIL_TOLD % gate)
        jobs = self.nodes(2, "1:2", script)
        self.world(2)
        spare, terminal = self.on_a_terminal("1:2", False, script, start=self.node)
        self.read_until(terminal, "this node is a spare")
        with open(gate, "w") as file:
            file.write("go\ngo\n")
        self.assertEqual([job.finish()[0] for job in (*jobs, spare)], [0, 0, 0])
        spare.wait_gone()


class Mixed(ElasticTest):
    def test_seven_nodes_with_roles_and_sizes(self):
        script = self.worker("#!/bin/sh\necho $GROUP_RANK $LOCAL_RANK $RANK $ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE > {fifo}\n")
        sizes = [1, 2, 3, 1, 2, 3, 4]
        jobs = [self.node("7", number == 0, f"--nproc-per-node={size}", f"--role={'reader' if number % 3 else 'trainer'}",
                          script) for number, size in enumerate(sizes)]
        seen = [line.split() for line in self.heard(sum(sizes))]
        self.assertEqual([job.finish()[0] for job in jobs], [0] * len(jobs))
        self.assertEqual(sorted(int(rank) for _, _, rank, *_ in seen), list(range(sum(sizes))))
        for role, size in (("trainer", 1 + 1 + 4), ("reader", 2 + 3 + 2 + 3)):
            self.assertEqual(sorted(int(rank) for *_, name, rank, _ in seen if name == role), list(range(size)))
            self.assertEqual({int(world) for *_, name, _, world in seen if name == role}, {size})
        for node in range(len(sizes)):
            mine = sorted((int(local), int(rank), int(role_rank)) for group, local, rank, _, role_rank, _ in seen
                          if int(group) == node)
            _, first, first_of_role = mine[0]
            self.assertEqual(mine, [(local, first + local, first_of_role + local) for local in range(len(mine))])

    def test_nodes_that_end_apart_all_end_well(self):
        gate = self.fifo("gate")
        quick, slow = self.worker("#!/bin/sh\necho quick > {fifo}\n", "quick.sh"), self.worker(UNTIL_TOLD % gate)
        jobs = [self.node("2", is_host, script, conf="keep_alive_interval=1") for is_host, script in ((True, quick), (False, slow))]
        self.heard(2)
        time.sleep(8)  # the span that is tested: longer than a lease and the host's patience
        with open(gate, "w") as file:
            file.write("go\n")
        self.assertEqual([job.finish()[0] for job in jobs], [0, 0])

    def test_the_number_of_nodes_by_variable(self):
        """As Kubeflow's operator gives it."""
        env = with_variables(PET_NNODES="1:2", PET_RDZV_BACKEND="c10d", PET_RDZV_ENDPOINT=f"127.0.0.1:{self.port}",
                             PET_RDZV_ID="job")
        jobs = [self.start(self.worker(WORKER), env=env) for _ in range(2)]
        self.assertEqual(self.world(2)[0], 0)
        self.stop_all(jobs)

    def test_the_words_of_torchx(self):
        """`dist.ddp -j 1:2x1`, as its local scheduler starts each replica."""
        flags = ("--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{self.port}", "--rdzv_id", "job", "--nnodes", "1:2",
                 "--nproc_per_node", "1", "--tee", "3", "--role", "", "--rdzv_conf", "keep_alive_interval=10")
        jobs = [self.start(*flags, self.worker(WORKER)) for _ in range(2)]
        self.assertEqual(self.world(2)[0], 0)
        self.stop_all(jobs)

    def test_preferred_ranks_are_met(self):
        script = self.worker("#!/bin/sh\necho $GROUP_RANK $NODE > {fifo}\n")
        jobs = [self.node("3", rank == 2, f"--node-rank={rank}", script, env=with_variables(NODE=str(rank)))
                for rank in (2, 0, 1)]
        self.assertEqual(sorted(self.heard(3)), ["0 0", "1 1", "2 2"])
        self.assertEqual([job.finish()[0] for job in jobs], [0, 0, 0])

    @unittest.skipUnless(subprocess.run(["unshare", *OTHER_CLOCK, "true"], capture_output=True).returncode == 0,
                         "another clock needs CAP_SYS_ADMIN and time namespaces")
    def test_case_59_clocks_that_differ(self):
        jobs = [self.node("2", is_host, self.worker(WORKER), prefix=prefix)
                for is_host, prefix in ((True, ()), (False, ("unshare", *OTHER_CLOCK)))]
        self.assertEqual(self.world(2)[0], 0)
        clocks = {os.readlink(f"/proc/{job.agent()}/ns/time") for job in jobs}
        self.assertEqual(len(clocks), 2, clocks)
        self.stop_all(jobs)


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
