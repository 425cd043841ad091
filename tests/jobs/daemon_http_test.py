"""Metrics, health and the status page of a ddprund (--http) with several jobs."""

import os
import re
import signal
import socket
import subprocess
import unittest

from daemon_test import Daemon, DaemonTest
from daemons_test import GroupTest
from elastic_test import UNTIL_TOLD
from http_test import Metrics, PageReader, ReachTest, fetch, in_a_browser, needs_browser, needs_parser
from machine import wait_until
from support import WAITING, main


def url_of(daemon):
    """Returns the address of the daemon's pages, which it has said."""
    return re.search(r"^ddprund: metrics and status page at (http://\S+:\d+/)$", daemon.said, re.M).group(1)


def sections(text):
    """Returns the page's text for each job, by id."""
    parts = [PageReader(part) for part in re.split(r'<section class="?job"?>', text)[1:]]
    return {part.texts["id"]: part for part in parts}


class DaemonHttpTest(DaemonTest):
    def two_jobs(self, daemon):
        """Job a of two nodes, and job b of three, which has lost a worker once."""
        self.nodes(2, daemon, "a", "2", self.worker(WAITING, "a.sh"))
        jobs = self.nodes(3, daemon, "b", "3", "--max-restarts=2", self.worker(WAITING, "b.sh"))
        self.heard(5)
        loser = wait_until(lambda: next((job for job in jobs if job.worker(2)), None), "rank 2")
        os.kill(loser.worker(2), signal.SIGKILL)
        self.heard(3)
        wait_until(lambda: daemon.status("b")["round"] == 2, "the second round")


@needs_parser
class MetricsOfADaemon(DaemonHttpTest):
    def test_each_job_has_its_own(self):
        daemon = self.daemon("--http=:0")
        self.assertEqual(Metrics(url_of(daemon)).of("jobs", state="running"), None)
        self.two_jobs(daemon)
        metrics = wait_until(lambda: self.metrics_with(daemon, {"running": 2}), "the next metrics that are made")
        self.assertEqual((metrics.of("leader"), metrics.of("healthy")), (1, 1))
        self.assertEqual(metrics.of("info", program="ddprund", hostname=socket.gethostname()), 1)
        self.assertEqual(metrics.of("jobs", state="running"), 2)
        for job, nodes, number, spent, allowed in ("a", 2, 1, 0, 0), ("b", 3, 2, 1, 2):
            self.assertEqual(metrics.of("round", job=job), number)
            self.assertEqual(metrics.of("world_size", job=job), nodes)
            self.assertEqual(metrics.of("sessions", job=job), nodes)
            self.assertEqual(metrics.of("restarts_spent", job=job), spent)
            self.assertEqual(metrics.of("restarts_allowed", job=job), allowed)
            for state, count in ("in_round", nodes), ("waiting", 0), ("spare", 0):
                self.assertEqual(metrics.of("nodes", job=job, state=state), count)
        self.assertIsNone(metrics.of("store_keys"), "it has no store")

    def test_the_states_of_jobs(self):
        daemon = self.daemon("--http=:0")
        self.check_ended([self.node(daemon, "well", "1", "/bin/true", conf="is_host=false")], 0)
        self.check_ended([self.node(daemon, "badly", "1", "/bin/false", conf="is_host=false")], 1)
        self.node(daemon, "alone", "2", "/bin/true")
        states = {"succeeded": 1, "failed": 1, "waiting": 1}
        metrics = wait_until(lambda: self.metrics_with(daemon, states), "all three states")
        self.assertEqual(metrics.of("nodes", job="alone", state="waiting"), 1)
        self.assertEqual(metrics.of("sessions", job="well"), 0)

    def metrics_with(self, daemon, states):
        metrics = Metrics(url_of(daemon))
        return metrics if all(metrics.of("jobs", state=state) == count for state, count in states.items()) else None

    def test_ids_that_are_tokens_are_shown_on_this_host_alone(self):
        for address, is_shown in ("127.0.0.1", True), ("0.0.0.0", False):
            with self.subTest(address):
                daemon = self.daemon(f"--http={address}:0", token=None)
                url = url_of(daemon).replace("0.0.0.0", "127.0.0.1")
                for job in "secret1", "secret2":
                    self.node(daemon, job, "2", "/bin/true")
                wait_until(lambda: Metrics(url).of("jobs", state="waiting") == 2, "both jobs")
                self.assertEqual(len([name for name, _ in Metrics(url) if name == "ddprun_round"]), 2, "each has a name of its own")
                for path in "", "metrics":
                    text = fetch(url + path)[1]
                    self.assertEqual(["secret1" in text, "secret2" in text], [is_shown, is_shown], text)


@needs_parser
class MetricsOfAGroup(GroupTest):
    def test_one_leads_and_then_the_other(self):
        leader, standby = self.group(2, "--http=:0")
        self.assertEqual([Metrics(url_of(daemon)).of("leader") for daemon in (leader, standby)], [1, 0])
        leader.end()
        wait_until(lambda: Metrics(url_of(standby)).of("leader") == 1, "the standby to lead")
        self.assertEqual(fetch(url_of(standby) + "healthz"), (200, "ok\n"))


class PageOfADaemon(DaemonHttpTest):
    def read(self, text):
        shown = sections(text)
        self.assertEqual(sorted(shown), ["a", "b"])
        hostname = socket.gethostname()
        for job, nodes, number in ("a", 2, "1"), ("b", 3, "2"):
            page = shown[job]
            self.assertEqual((page.texts["state"], page.texts["round"]), ("running", number))
            self.assertEqual(page.tables["seats"], [[str(seat), hostname, str(seat), "running"] for seat in range(nodes)])
        self.assertNotIn("reasons", shown["a"].tables)
        (reason,) = shown["b"].tables["reasons"]
        self.assertRegex(reason[0], r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$")
        self.assertRegex(reason[1], r"SIGKILL")

    def test_shows_jobs_seats_and_reasons(self):
        daemon = self.daemon("--http=:0")
        self.two_jobs(daemon)
        self.read(fetch(url_of(daemon))[1])
        self.assertEqual(fetch(url_of(daemon) + "healthz"), (200, "ok\n"))

    @needs_browser
    def test_in_a_browser(self):
        daemon = self.daemon("--http=:0")
        self.two_jobs(daemon)
        self.read(in_a_browser(url_of(daemon), self.folder))


class PortOfADaemon(DaemonTest):
    def test_without_the_flag_nothing_listens(self):
        def listening(daemon):
            table = subprocess.run(["ss", "-ltnpH"], check=True, capture_output=True, text=True).stdout
            return table.count(f"pid={daemon.process.pid},")
        self.assertEqual([listening(self.daemon(*flags)) for flags in ([], ["--http=:0"])], [1, 2])

    def test_a_port_that_is_taken_is_warned_of(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            daemon = self.daemon(f"--http={port}")
        self.assertIn(f"no metrics and no status page: port {port} on 127.0.0.1: address already in use; choose another --http", daemon.said)
        self.check_ended(self.nodes(2, daemon, "job", "2", self.script("#!/bin/sh\nexit 0\n")), 0)


class ReachOfADaemon(ReachTest):
    def test_only_an_address_that_is_given_is_reached_from_outside(self):
        for flag, reached in self.FLAGS:
            with self.subTest(flag):
                daemon = Daemon(flag, prefix=("ip", "netns", "exec", self.hosts[0]))
                self.addCleanup(daemon.end)
                self.check_reach(flag, reached)
                daemon.end()


if __name__ == "__main__":
    main()
