"""Operators use ddpctl on a job whose agent hosts the rendezvous."""

import importlib.util
import json
import os
import pathlib
import time
import unittest

import control
from elastic_test import UNTIL_TOLD, WORKER, ElasticTest
from machine import free_port, wait_until
from support import main, told, with_variables

SCHEMA = pathlib.Path(__file__).parents[1] / "daemon" / "status.schema.json"
DEAF = """#!/bin/sh
trap '' TERM
echo "$RANK/$WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT at x:1" > {fifo}
while :; do sleep 1; done
"""


class ControlTest(ElasticTest):
    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    def ctl(self, *words, **options):
        return control.ctl(self.endpoint, *words, **options)

    def done(self, *words, **options):
        code, out, err = self.ctl(*words, **options)
        self.assertEqual((code, err), (0, ""), out)
        return out

    def status(self, **options):
        return control.status(self.endpoint, **options)

    def check_refused(self, wanted, words, *command, **options):
        """This exit code, nothing on stdout, and one line with these words."""
        code, out, err = self.ctl(*command, **options)
        self.assertEqual((code, out), (wanted, ""), err)
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertIn(words, err)

    def check_schema(self, text):
        import jsonschema  # Debian's python3-jsonschema
        jsonschema.validate(json.loads(text), json.loads(SCHEMA.read_text()))


class Shows(ControlTest):
    def test_jobs_status_and_nodes(self):
        jobs = self.nodes(3, "1:3", "--max-restarts=2", self.worker(WORKER))
        self.world(3)
        rows = [line.split() for line in self.done("jobs", token="job").splitlines()]
        self.assertEqual(rows, [["JOB", "PHASE", "ROUND", "NODES", "WANTED", "RESTARTS", "WHY"],
                                ["job", "running", "1", "3", "1:3", "0/2"]])
        shown = self.status()
        self.assertEqual((shown["phase"], shown["round"], shown["restarts"], shown["max_restarts"]), ("running", 1, 0, 2))
        self.assertEqual([node["node_rank"] for node in shown["nodes"]], [0, 1, 2])
        self.assertEqual({node["state"] for node in shown["nodes"]}, {"running"})
        self.assertEqual([node["hosts_rendezvous"] for node in shown["nodes"]].count(True), 1)
        self.assertEqual(len(self.done("nodes", "job").splitlines()), 4)
        self.assertIn("job: running, round 1, 3 of 1:3 nodes, 0 of 2 restarts spent", self.done("status", "job"))
        self.stop_all(jobs)

    def test_what_a_round_waits_for(self):
        job = self.node("2", True, self.worker(WORKER))
        shown = wait_until(self.status, "a status")
        self.assertEqual(shown["phase"], "waiting")
        self.assertRegex(shown["waits_for"], r"^1 of 2 nodes are here, \d+ s left$")
        self.stop_all([job])

    @unittest.skipUnless(importlib.util.find_spec("jsonschema"), "python3-jsonschema is not installed")
    def test_json_is_as_the_schema_has_it(self):
        jobs = self.nodes(2, "1:2", self.worker(WORKER))
        self.world(2)
        for command in ["jobs"], ["status"], ["status", "job"], ["nodes", "job"]:
            self.check_schema(self.done(*command, "--json", token="job"))
        self.check_schema(self.done("drain", "job", self.guest(), "--json"))
        self.world(1)
        self.check_schema(self.done("status", "job", "--json"))
        code, out, _ = self.ctl("drain", "job", "7", "--json")
        self.assertEqual(code, 4)
        self.check_schema(out)
        self.stop_all(jobs)

    def guest(self):
        """A node that does not host, by its id."""
        return next(node["id"] for node in self.status()["nodes"] if not node["hosts_rendezvous"])


class Drains(ControlTest):
    def test_a_drained_node_exits_0_and_the_others_go_on(self):
        jobs = self.nodes(3, "2:3", self.worker(WORKER), conf="keep_alive_interval=10,last_call_timeout=600")
        self.world(3)
        victim = next(job for job in jobs if job.worker(1) is not None)
        begin = time.monotonic()
        self.assertIn("node 1 is told to leave", self.done("drain", "job", "1"))
        self.assertEqual(self.world(2)[0], 0, "no restart is spent; there was none")
        told("drain to the workers of the smaller world", [time.monotonic() - begin])
        code, _, err = victim.finish()
        self.assertEqual(code, 0, err)
        self.assertIn("an operator drained this node", err)
        victim.wait_gone()
        shown = self.status()
        self.assertEqual((shown["restarts"], shown["round"], len(shown["nodes"])), (0, 2, 2))
        self.assertEqual([incident["kind"] for incident in shown["incidents"]], ["resize"])
        self.assertIn("an operator drained node 1", shown["incidents"][0]["text"])
        self.assertGreaterEqual(shown["incidents"][0]["reformed_after_s"], 0)
        self.stop_all([job for job in jobs if job is not victim])

    def test_a_worker_that_ignores_sigterm_is_ended_at_the_deadline(self):
        jobs = self.nodes(2, "1:2", "--shutdown-timeout=600", self.worker(DEAF))
        self.world(2)
        guest = next(job for job in jobs if not job.listens(self.port))
        rank = next(rank for rank in (0, 1) if guest.worker(rank) is not None)
        # The host's worker is as deaf, and its grace is long: the host is drained by nobody.
        begin = time.monotonic()
        self.done("drain", "job", str(rank), "--deadline", "2")
        code, _, err = guest.finish()
        took = time.monotonic() - begin
        self.assertEqual(code, 0, err)
        self.assertGreater(took, 1.9)
        self.assertLess(took, 20)
        told("drain with a deadline of 2 s to the node's exit", [took])
        guest.wait_gone()

    def test_too_few_would_remain(self):
        jobs = self.nodes(2, "2", self.worker(WORKER))
        self.world(2)
        guest = next(node["node_rank"] for node in self.status()["nodes"] if not node["hosts_rendezvous"])
        self.check_refused(1, "1 node(s) would remain, and the job needs 2", "drain", "job", str(guest))
        self.assertEqual(self.status()["phase"], "running")
        self.stop_all(jobs)

    def test_the_host_is_not_drained(self):
        jobs = self.nodes(2, "1:2", self.worker(WORKER))
        self.world(2)
        host = next(node["id"] for node in self.status()["nodes"] if node["hosts_rendezvous"])
        self.check_refused(1, "hosts the rendezvous, and the job would end with it", "drain", "job", host)
        self.stop_all(jobs)


class Resizes(ControlTest):
    def test_fewer_nodes_and_more_again(self):
        jobs = self.nodes(3, "1:3", self.worker(WORKER))
        self.world(3)
        self.done("resize", "job", "1:2")
        self.assertEqual(self.world(2)[0], 0)
        shown = self.status()
        self.assertEqual(sorted(node["state"] for node in shown["nodes"]), ["running", "running", "spare"])
        self.assertEqual((shown["restarts"], shown["min_nodes"], shown["max_nodes"]), (0, 1, 2))
        self.done("resize", "job", "1:3")
        self.assertEqual(self.world(3)[0], 0)
        self.stop_all(jobs)


class Ends(ControlTest):
    def test_stop_ends_the_job_on_every_node(self):
        jobs = self.nodes(2, "2", self.worker(WORKER))
        self.world(2)
        waiter = control.start_ctl(self.endpoint, "wait", "job")
        self.addCleanup(waiter.kill)
        self.await_question_of(waiter)
        self.assertEqual(self.done("stop", "job"), "the job was stopped\n")
        for job in jobs:
            code, _, err = job.finish()
            self.assertEqual(code, 1, err)
            self.assertRegex(err, "an operator on .* stopped the job; the workers were stopped")
            job.wait_gone()
        out, err = waiter.communicate(timeout=20)
        self.assertEqual(waiter.returncode, 1, (out, err))
        self.assertIn("stopped the job", err)

    def test_wait_says_what_it_waits_for(self):
        jobs = self.nodes(2, "2", self.worker(WORKER))
        self.world(2)
        waiter = control.start_ctl(self.endpoint, "wait", "job")
        self.addCleanup(waiter.kill)
        self.assertEqual(waiter.stderr.readline(), f"ddpctl: waiting for 5 s: the end of job 'job' at {self.endpoint}\n")
        self.done("stop", "job")
        waiter.communicate(timeout=20)
        self.stop_all(jobs)

    def test_a_question_to_several_daemons_says_why_it_waits(self):
        first, second = (f"127.0.0.1:{free_port()}" for _ in range(2))
        code, _, err = control.ctl(f"{first},{second}", "jobs")
        self.assertEqual(code, 3, err)
        self.assertIn(f"ddpctl: waiting for 5 s: an answer of {first}, {second}: {first}: nobody answers there\n", err)

    def test_stop_with_detailed_codes(self):
        jobs = self.nodes(2, "2", "--exit-codes=detailed", self.worker(WORKER))
        self.world(2)
        self.done("stop", "job")
        self.assertEqual([job.finish()[0] for job in jobs], [122, 122])

    def test_wait_answers_when_the_job_succeeded(self):
        gate = self.fifo("gate")
        jobs = self.nodes(2, "2", self.worker(UNTIL_TOLD % gate))
        self.world(2)
        waiter = control.start_ctl(self.endpoint, "wait", "job")
        self.addCleanup(waiter.kill)
        self.await_question_of(waiter)
        with open(gate, "w") as file:
            file.write("go\n" * 2)
        out, err = waiter.communicate(timeout=30)
        self.assertEqual((waiter.returncode, err), (0, ""), out)
        self.assertEqual(out, "it succeeded\n")
        self.assertEqual([job.finish()[0] for job in jobs], [0, 0])

    def await_question_of(self, waiter):
        """It is connected, and others that came after it have been answered."""
        wait_until(lambda: self.has_connection(waiter.pid), "ddpctl to be connected")
        for _ in range(3):
            self.assertIsNotNone(self.status())
        self.assertIsNone(waiter.poll())

    @staticmethod
    def has_connection(pid):
        """Whether it has asked: it then waits for gRPC, and its socket is there."""
        try:
            return any(os.readlink(fd).startswith("socket:") for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir())
        except FileNotFoundError:
            return False


class Refusals(ControlTest):
    def test_the_exit_codes(self):
        env = with_variables(DDPRUN_TOKEN="secret")
        job = self.node("2", True, self.worker(WORKER), env=env)
        wait_until(lambda: self.status(token="secret"), "the host")
        self.check_refused(5, "the job's token is missing or wrong", "status", "job", token="other")
        self.assertIn("job", self.done("jobs"), "the same user needs none, on the host")
        self.check_refused(4, "no job with rdzv_id=nobody is here", "status", "nobody", token="secret")
        self.check_refused(4, "no node of the job has the node rank, hostname or id 9", "drain", "job", "9", token="secret")
        self.check_refused(2, "expected one of jobs", "no-such-command")
        file = self.folder / "token"
        file.write_text("secret\n")
        file.chmod(0o600)
        self.assertIn("job", self.done("jobs", f"--token-file={file}"))
        self.check_refused(2, "--token-file=/nowhere: expected a readable file", "jobs", "--token-file=/nowhere")
        self.stop_all([job])
        nobody = f"127.0.0.1:{free_port()}"
        code, out, err = control.ctl(nobody, "jobs")
        self.assertEqual((code, out), (3, ""), err)
        self.assertIn(f"{nobody}: nobody answers there", err)


if __name__ == "__main__":
    main()
