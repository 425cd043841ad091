"""Jobs whose nodes elect their leader in an etcd, and elect the next one when it is lost."""

import os
import shutil
import signal
import socket
import time
import types
import unittest

import etcd
from elastic_test import UNTIL_TOLD, WORKER, ElasticTest
from machine import free_port, state_of, wait_until
from support import main, sanitized, told, with_variables

IN_A_NEW_ROUND_S = 5  # on a busy machine; what it took is printed
# Takes as many seconds to end as its rank.
SLOW = """#!/bin/sh
trap 'trap "" TERM; echo saving > {fifo}; sleep $RANK; echo saved > {fifo}; exit 0' TERM
echo "$RANK/$WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT at $MASTER_ADDR:$MASTER_PORT" > {fifo}
while :; do sleep 1000 & wait; done
"""
# Nothing is found out by silence, and no round starts too early.
LONG = "keep_alive_interval=600,last_call_timeout=600"


@etcd.needed
class EtcdTest(ElasticTest):
    def setUp(self):
        super().setUp()
        self.etcd = etcd.Etcd()
        self.addCleanup(self.etcd.end)

    def node(self, nnodes, *args, conf=LONG, endpoint=None, rdzv_id="job", **options):
        return self.start(f"--nnodes={nnodes}", "--rdzv-backend=etcd", f"--rdzv-id={rdzv_id}",
                          f"--rdzv-endpoint={endpoint or self.etcd.endpoint}", f"--rdzv-conf={conf}", *args, **options)

    def nodes(self, count, nnodes, *args, **options):
        return [self.node(nnodes, *args, **options) for _ in range(count)]

    def leader_of(self, jobs, rdzv_id="job"):
        """The job whose agent leads, by the port in the key."""
        def found():
            value = self.etcd.value(f"/ddprun/{rdzv_id}/leader")
            port = int(value.partition("port=")[2].split()[0]) if value else 0
            return next((job for job in jobs if port and job.listens(port)), None)
        return wait_until(found, "a leader")

    def finish_well(self, jobs, gate):
        with open(gate, "w") as file:
            file.write("go\n" * len(jobs))
            file.flush()
            results = [job.finish() for job in jobs]
        self.assertEqual([code for code, _, _ in results], [0] * len(jobs), results)
        for job in jobs:
            job.wait_gone()
        return results


class Elects(EtcdTest):
    def test_jobs_end_well(self):
        for count, nnodes in (2, "2"), (3, "1:3"):
            gate = self.fifo(f"gate{count}")
            jobs = self.nodes(count, nnodes, self.worker(UNTIL_TOLD % gate, f"{count}.sh"))
            self.assertEqual(self.world(count)[0], 0)
            self.assertIn("v3 runs round=1 restarts=0", self.etcd.value("/ddprun/job/record"))
            for _, _, err in self.finish_well(jobs, gate):
                self.assertNotIn("leader", err)
            self.assertIsNone(self.etcd.value("/ddprun/job/leader"))
            self.assertIn("v3 succeeded", self.etcd.value("/ddprun/job/record"))

    def test_the_next_job_of_an_id_begins_anew(self):
        for _ in range(2):
            self.assertEqual([job.finish()[0] for job in self.nodes(2, "2", "/bin/true")], [0, 0])
        self.assertIn("round=1 restarts=0", self.etcd.value("/ddprun/job/record"))

    def test_two_jobs_in_one_etcd(self):
        jobs = {name: [self.node("2", self.worker(WORKER), rdzv_id=name) for _ in range(2)] for name in ("a", "b")}
        self.heard(4)
        self.stop_all(jobs["a"])
        self.assertEqual([job.process.poll() for job in jobs["b"]], [None, None])
        self.stop_all(jobs["b"])

    def test_a_failed_worker_restarts_all(self):
        script = self.worker('#!/bin/sh\necho "$RANK $TORCHELASTIC_RESTART_COUNT" > {fifo}\n'
                             'test "$TORCHELASTIC_RESTART_COUNT" = 1 && exit 0\nexec sleep 1000\n')
        jobs = self.nodes(2, "2", "--max-restarts=2", script)
        self.assertEqual(sorted(self.heard(2)), ["0 0", "1 0"])
        loser = wait_until(lambda: next((job for job in jobs if job.worker(1)), None), "rank 1")
        os.kill(loser.worker(1), signal.SIGKILL)
        self.assertEqual(sorted(self.heard(2)), ["0 1", "1 1"])
        self.assertEqual([job.finish()[0] for job in jobs], [0, 0])
        self.assertIn("round=2 restarts=1", self.etcd.value("/ddprun/job/record"))

    def test_the_old_name_says_what_is_spoken(self):
        jobs = [self.start("--nnodes=2", "--rdzv-backend=etcd-v2", f"--rdzv-endpoint={self.etcd.endpoint}", "/bin/true")
                for _ in range(2)]
        for code, _, err in [job.finish() for job in jobs]:
            self.assertEqual(code, 0, err)
            self.assertEqual(err.count("etcd's v3 API is spoken"), 1, err)

    def test_a_wrong_token_is_refused(self):
        right, wrong = (with_variables(DDPRUN_TOKEN=token) for token in ("open-sesame", "open-barley"))
        host = self.node("2", "/bin/true", env=right)
        self.leader_of([host])
        code, _, err = self.node("2", "/bin/true", env=wrong).finish()
        self.assertEqual(code, 1)
        self.assertIn("token", err)
        guest = self.node("2", "/bin/true", env=right)
        self.assertEqual([job.finish()[0] for job in (host, guest)], [0, 0])

    def test_another_host_at_the_address_of_a_dead_leader_is_not_believed(self):
        right, wrong = (with_variables(DDPRUN_TOKEN=token) for token in ("open-sesame", "open-barley"))
        port = free_port()
        impostor = self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job", "/bin/true", env=wrong)
        wait_until(lambda: impostor.listens(port), "the other host")
        self.etcd.put("/ddprun/job/leader", f"v2 127.0.0.1 port={port} {socket.gethostname()}", seconds=3)
        results = [job.finish() for job in self.nodes(2, "2", "/bin/true", env=right)]
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        for _, _, err in results:
            self.assertEqual(err.count("the host is an impostor; looking for the next leader"), 1, err)
        self.stop(impostor)


class LosesItsLeader(EtcdTest):
    def test_case_52_the_node_that_hosts_the_rendezvous_is_killed(self):
        took = []
        for count, nnodes in (3, "1:3"), (3, "2:3"), (2, "1:2"):
            with self.subTest(nnodes):
                name = f"job{nnodes.replace(':', '_')}"
                gate = self.fifo(name)
                jobs = self.nodes(count, nnodes, "--max-restarts=3", self.worker(UNTIL_TOLD % gate, f"{name}.sh"), rdzv_id=name)
                self.assertEqual(self.world(count)[0], 0)
                leader = self.leader_of(jobs, name)
                others = [job for job in jobs if job is not leader]
                begin = time.monotonic()
                self.kill_whole(leader)
                self.assertEqual(self.world(count - 1)[0], 1)
                took.append(time.monotonic() - begin)
                self.finish_well(others, gate)
                self.assertIn("v3 succeeded round=2 restarts=1", self.etcd.value(f"/ddprun/{name}/record"))
        self.assertLess(told("the leader's death to the others' new workers", took), IN_A_NEW_ROUND_S)

    def test_the_next_round_waits_for_the_workers_of_before(self):
        jobs = self.nodes(3, "1:3", "--max-restarts=3", self.worker(SLOW))
        self.world(3)
        leader = self.leader_of(jobs)
        self.kill_whole(leader)
        self.assertEqual(sorted(self.heard(4)), ["saved", "saved", "saving", "saving"])
        self.assertEqual(self.world(2)[0], 1)
        self.stop_all([job for job in jobs if job is not leader])

    def test_leaders_are_lost_one_after_another(self):
        gate = self.fifo("gate")
        jobs = self.nodes(4, "1:4", "--max-restarts=3", self.worker(UNTIL_TOLD % gate))
        self.assertEqual(self.world(4)[0], 0)
        for restarts in 1, 2, 3:
            leader = self.leader_of(jobs)
            jobs.remove(leader)
            self.kill_whole(leader)
            self.assertEqual(self.world(4 - restarts)[0], restarts)
        self.finish_well(jobs, gate)

    def test_without_a_restart_left_the_job_ends(self):
        jobs = self.nodes(3, "1:3", self.worker(WORKER))
        self.world(3)
        leader = self.leader_of(jobs)
        self.kill_whole(leader)
        for job in jobs:
            if job is not leader:
                code, _, err = job.finish()
                self.assertEqual(code, 1)
                self.assertIn("was lost", err)

    def test_a_job_that_died_as_a_whole_begins_anew(self):
        """When its leases are over. It had no restart left, and that is no reason for the next job
        of its id to fail."""
        jobs = self.nodes(2, "2", self.worker(WORKER), conf="keep_alive_interval=1,last_call_timeout=600")
        self.world(2)
        for job in jobs:
            self.kill_whole(job)
        again = self.nodes(2, "2", self.worker(WORKER), conf="keep_alive_interval=1,last_call_timeout=600")
        self.assertEqual(self.world(2)[0], 0)
        self.stop_all(again)

    def test_without_enough_nodes_the_others_wait(self):
        jobs = self.nodes(2, "2", "--max-restarts=1", self.worker(WORKER))
        self.world(2)
        leader = self.leader_of(jobs)
        self.kill_whole(leader)
        (other,) = (job for job in jobs if job is not leader)
        self.assertIs(self.leader_of([other]), other)
        new = self.node("2", "--max-restarts=1", self.worker(WORKER))
        self.assertEqual(self.world(2)[0], 1)
        self.stop_all([other, new])

    def test_a_leader_that_is_told_to_end_ends_the_job(self):
        jobs = self.nodes(2, "1:2", self.worker(WORKER))
        self.world(2)
        leader = self.leader_of(jobs)
        leader.process.send_signal(signal.SIGTERM)
        for job in jobs:
            code, _, err = job.finish()
            self.assertEqual(code, 1)
            self.assertIn("SIGTERM", err)

    @unittest.skipIf(os.environ.get("DDPRUN", "").find("asan") >= 0 or sanitized(), "its leases are too short for a sanitizer")
    def test_a_leader_that_stands_still_is_followed(self):
        """Its lease ends. When it wakes up it leads no more: it ends its workers and comes back as
        a node."""
        conf = "keep_alive_interval=1,last_call_timeout=600,resize_interval=1"
        jobs = self.nodes(3, "1:3", "--max-restarts=3", self.worker(WORKER), conf=conf)
        self.world(3)
        leader = self.leader_of(jobs)
        agent = leader.agent()
        workers = leader.children_of(agent)
        begin = time.monotonic()
        os.kill(agent, signal.SIGSTOP)
        self.assertEqual(self.world(2)[0], 1)
        self.assertEqual({state_of(pid) for pid in workers} - {"Z", None}, set(), "a worker outlived its round")
        told("a leader's standstill to the others' new workers", [time.monotonic() - begin])
        os.kill(agent, signal.SIGCONT)
        self.assertEqual(self.world(3)[0], 1)
        self.stop_all(jobs)


@unittest.skipIf(os.environ.get("DDPRUN", "").find("asan") >= 0 or sanitized(), "its leases are too short for a sanitizer")
class StandsStill(EtcdTest):
    def three(self, name, conf="", *flags, nnodes="3"):
        gate = self.fifo(f"gate_{name}")
        said = self.fifo(f"said_{name}")
        script = self.script((UNTIL_TOLD % gate).replace("{fifo}", str(said)), f"{name}.sh")
        jobs = self.nodes(3, nnodes, "--max-restarts=3", *flags, script, conf=f"last_call_timeout=600{conf}", rdzv_id=name)
        self.assertEqual(sorted(line.split()[0] for line in self.read_lines(said, 3)), ["0/3", "1/3", "2/3"])
        return types.SimpleNamespace(name=name, jobs=jobs, said=said, gate=gate, leader=self.leader_of(jobs, name))

    @staticmethod
    def send(jobs, signo):
        for job in jobs:
            for pid in (job.pid, *job.processes()):
                os.kill(pid, signo)

    def key(self, three, name):
        return f"/ddprun/{three.name}/{name}"

    def forgotten(self, three):
        wait_until(lambda: not self.etcd.value(self.key(three, "leader")), "the end of the leader's lease")
        self.etcd.remove(self.key(three, "record"))  # its own lease is longer

    def go_on(self, threes):
        for three in threes:
            wait_until(lambda: self.etcd.value(self.key(three, "leader")) and self.etcd.value(self.key(three, "record")), "a leader, and its record")
        time.sleep(3)  # a node that had lost its worker would start it by then
        for three in threes:
            errors = [err for *_, err in self.finish_well(three.jobs, three.gate)]
            self.assertEqual(self.fifos[three.said].lines_so_far(), [], f"a worker of {three.name} was started anew: {errors}")

    def test_a_job_that_stands_still_loses_nothing(self):
        """The leader's node, or all of them, past the leader's lease; with all leases over, and
        etcd's record forgotten."""
        host, whole, lost_host, lost_whole, long = (self.three("host"), self.three("whole"), self.three("lost_host"), self.three("lost_whole"),
                                                    self.three("long", ",keep_alive_interval=1"))
        still = [host.leader, *whole.jobs, lost_host.leader, *lost_whole.jobs, *long.jobs]
        self.send(still, signal.SIGSTOP)
        begin = time.monotonic()
        for three in (lost_host, lost_whole, long):
            self.forgotten(three)
        time.sleep(max(0, begin + 6 - time.monotonic()))  # longer than the leases of the last one
        self.send(still, signal.SIGCONT)
        self.go_on((host, whole, lost_host, lost_whole, long))

    def test_nothing_starts_anew_of_a_job_that_may_have_ended(self):
        """Nobody else is left of its job, and etcd has forgotten it. The others may have finished
        while this node was suspended."""
        three = self.three("ended", ",keep_alive_interval=2", nnodes="1:3")
        others = [job for job in three.jobs if job is not three.leader]
        self.send([three.leader], signal.SIGSTOP)
        self.forgotten(three)
        for job in others:
            self.kill_whole(job)
        self.send([three.leader], signal.SIGCONT)
        code, _, err = three.leader.finish()
        self.assertEqual(code, 1, err)
        self.assertIn("did not come back", err)
        self.assertEqual(self.fifos[three.said].lines_so_far(), [], "a worker was started anew")


class Etcds(EtcdTest):
    def test_a_dead_member_is_passed_over(self):
        endpoint = f"127.0.0.1:{free_port()},{self.etcd.endpoint},127.0.0.1:{free_port()}"
        jobs = self.nodes(2, "1:2", "--max-restarts=1", self.worker(WORKER), endpoint=endpoint)
        self.world(2)
        leader = self.leader_of(jobs)
        self.kill_whole(leader)
        self.assertEqual(self.world(1)[0], 1)
        self.stop_all([job for job in jobs if job is not leader])

    def test_an_unknown_member_is_passed_over(self):
        jobs = self.nodes(2, "2", "/bin/true", endpoint=f"no-such-host.invalid:1,{self.etcd.endpoint}")
        self.assertEqual([job.finish()[0] for job in jobs], [0, 0])

    def test_nothing_at_the_endpoint(self):
        endpoint = f"127.0.0.1:{free_port()}"
        self.refused(1, [endpoint, "read_timeout=1"], "--nnodes=2", "--rdzv-backend=etcd", f"--rdzv-endpoint={endpoint}",
                     "--rdzv-conf=read_timeout=1", "/bin/true")

    def test_an_etcd_that_comes_back(self):
        """Without etcd no leader is sure of its lease. It steps down, and the job goes on when etcd
        is back."""
        # The guest's lease ends, too: a node that hears of no leader keeps its workers until then.
        jobs = self.nodes(2, "2", "--max-restarts=3", self.worker(WORKER), conf="keep_alive_interval=1,last_call_timeout=600")
        self.world(2)
        self.etcd.kill()
        wait_until(lambda: all(job.worker(0) is None and job.worker(1) is None for job in jobs), "the end of the workers")
        begin = time.monotonic()
        self.etcd.start()
        self.assertEqual(self.world(2)[0], 1)
        told("etcd's return to the new workers", [time.monotonic() - begin])
        self.stop_all(jobs)

    def test_a_wait_for_etcd_or_a_leader_says_why(self):
        """Tries nodes whose etcd goes while they run. One more follows a group of daemons of which
        none is there."""
        alone = self.node("2", "--no-python", "true", conf="daemons=nobody")
        self.assertRegex(self.waiting_line(alone), r"no host has answered yet, giving up in \d+ s: there has been no leader in etcd for \d+ s\n$")
        jobs = self.nodes(2, "2", "--max-restarts=3", self.worker(WORKER))
        self.world(2)
        self.etcd.kill()
        for job in jobs:
            self.assertRegex(self.waiting_line(job), rf"etcd does not answer: {self.etcd.endpoint}: .*Connection refused")
        for job in (alone, *jobs):
            job.process.send_signal(signal.SIGTERM)
            job.finish()

    def waiting_line(self, job):
        """The first line of a wait on its stderr, which is a file."""
        said = []
        for line in job.process.stderr:
            said.append(line)
            if "waiting for" in line:
                print(line.strip())
                return line
        self.fail(f"it ended: {said}")

    def test_user_and_password(self):
        self.etcd.ask("auth/user/add", name="root", password="sesame")
        self.etcd.ask("auth/role/add", name="root")
        self.etcd.ask("auth/user/grant", user="root", role="root")
        self.etcd.ask("auth/enable")
        jobs = self.nodes(2, "2", "/bin/true", conf="username=root,password=sesame")
        self.assertEqual([job.finish()[0] for job in jobs], [0, 0])
        secret = self.folder / "password"
        secret.write_text("sesame\n")
        secret.chmod(0o600)
        jobs = self.nodes(2, "2", "/bin/true", conf=f"username=root,password_file={secret}")
        self.assertEqual([job.finish()[0] for job in jobs], [0, 0])
        for conf in "username=root,password=barley", "read_timeout=5":
            code, _, err = self.node("2", "/bin/true", conf=conf).finish()
            self.assertEqual(code, 1)
            self.assertIn(f"etcd at {self.etcd.endpoint}", err)
            self.assertNotIn("barley", err)


@etcd.needed
@unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
class Certificates(EtcdTest):
    def setUp(self):
        ElasticTest.setUp(self)
        pem = self.pem = etcd.certificates()
        self.etcd = etcd.Etcd(f"--cert-file={pem}/cert.pem", f"--key-file={pem}/key.pem", f"--trusted-ca-file={pem}/ca.pem",
                              "--client-cert-auth", scheme="https")
        self.addCleanup(self.etcd.end)

    def test_a_certificate_on_both_ends(self):
        files = f"protocol=https,cacert={self.pem}/ca.pem,cert={self.pem}/cert.pem,key={self.pem}/key.pem"
        self.assertEqual([job.finish()[0] for job in self.nodes(2, "2", "/bin/true", conf=files)], [0, 0])
        for conf in f"protocol=https,cacert={self.pem}/ca.pem,read_timeout=2", "read_timeout=2":
            code, _, err = self.node("2", "/bin/true", conf=conf).finish()
            self.assertEqual(code, 1)
            self.assertIn(f"etcd at {self.etcd.endpoint}", err)

    def test_a_file_that_is_no_certificate_is_named(self):
        code, _, err = self.node("2", "/bin/true", conf="protocol=https,cacert=/dev/null").finish()
        self.assertEqual(code, 1)
        self.assertIn("cacert=/dev/null", err)


if __name__ == "__main__":
    main()
