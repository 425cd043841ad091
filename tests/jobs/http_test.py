"""Metrics, health and the status page (--http), as Prometheus, a probe and a browser see them."""

import html.parser
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

from browser import DEADLINE as BROWSER_DEADLINE, PROGRAM as BROWSER, Browser
from machine import free_port, wait_until
from namespaces_test import TwoHosts
from nodes_test import NodesTest
from support import DDPRUN, WAITING, main

# Debian's packages are on the path of Debian's interpreter; CMake may have found another one. This
# one is plain Python.
sys.path.append("/usr/lib/python3/dist-packages")
try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    text_string_to_metric_families = None

SIMULATED_PAGES = pathlib.Path(DDPRUN).with_name("simulated_pages")
STAGES = r"detected \d+\.\d{3} s, stopped \d+\.\d{3} s, re-formed \d+\.\d{3} s"
NO_PARSER = "no prometheus_client (Debian: python3-prometheus-client)"
FETCH = """
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(opener.open(sys.argv[1], timeout=5).read().decode())
"""


def fetch(url, method="GET"):
    """(status, text) of a page."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, method=method), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


class Metrics(dict):
    """(name, labels as a sorted tuple of pairs) -> value, by Prometheus' own parser."""

    def __init__(self, url):
        status, text = fetch(url + "metrics")
        assert status == 200, text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        super().__init__({(sample.name, tuple(sorted(sample.labels.items()))): sample.value
                          for family in self.families.values() for sample in family.samples})

    def of(self, name, **labels):
        return self.get((f"ddprun_{name}", tuple(sorted(labels.items()))))


def in_a_browser(url, folder):
    """The page as a browser has it after it has read it."""
    shown = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-proxy-server",
                            f"--user-data-dir={folder / 'browser'}", "--dump-dom", url],
                           capture_output=True, text=True, timeout=BROWSER_DEADLINE)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


class PageReader(html.parser.HTMLParser):
    """The contents of a page: texts by class or id, and tables by class as lists of rows."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.tables, self.table, self.into = {}, {}, None, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        name = dict(attrs).get("class") or dict(attrs).get("id")
        if tag == "table":
            self.table = self.tables.setdefault(name, [])
        elif tag == "tr" and self.table is not None:
            self.table.append([])
        elif tag == "td":
            self.table[-1].append("")
        self.into = name if tag in ("span", "p") else None

    def handle_endtag(self, tag):
        self.into = None
        if tag == "table":
            self.tables = {name: [row for row in rows if row] for name, rows in self.tables.items()}
            self.table = None

    def handle_data(self, data):
        if self.into:
            self.texts[self.into] = self.texts.get(self.into, "") + data
        elif self.table and self.table[-1]:
            self.table[-1][-1] += data.strip()


class HttpTest(NodesTest):
    """Jobs whose agents say where their pages are."""

    def setUp(self):
        super().setUp()
        self.said = {}

    def url(self, job):
        """Returns the address of the job's pages, which it has said on stderr."""
        if job not in self.said:
            text = self.read_until(job.process.stderr.fileno(), "/\n")
            self.said[job] = re.search(r"^ddprun: metrics and status page at (http://\S+:\d+/)$", text, re.M).group(1)
        return self.said[job]

    def two_nodes(self, *flags, nodes="2", **options):
        """A job of two nodes whose workers wait: the node with the rendezvous, the other one."""
        jobs = [self.start(f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-id=training", "--http=:0", *flags,
                           f"--rdzv-endpoint=127.0.0.1:{self.port}", self.worker(WAITING), **options) for _ in range(2)]
        self.heard(2)
        return sorted(jobs, key=lambda job: job.listens(self.port), reverse=True)

    def kill_worker(self, jobs, rank):
        loser, _ = self.owner(jobs, rank)
        os.kill(loser.worker(rank), signal.SIGKILL)
        self.heard(2)


needs_parser = unittest.skipUnless(text_string_to_metric_families, NO_PARSER)
needs_browser = unittest.skipUnless(BROWSER, "no browser (Debian: chromium)")


@needs_parser
class MetricsOfJobs(HttpTest):
    def test_counters_grow_with_a_restart_on_both_nodes(self):
        jobs = self.two_nodes("--max-restarts=3")
        before = [Metrics(self.url(job)) for job in jobs]
        self.assertEqual([metrics.of("leader") for metrics in before], [1, 0])
        self.assertEqual([metrics.of("sessions", job="training") for metrics in before], [2, None])
        self.assertEqual([metrics.of("nodes", job="training", state="spare") for metrics in before], [0, None])
        for metrics in before:
            self.assertEqual(metrics.of("jobs", state="running"), 1)
            self.assertEqual(metrics.of("healthy"), 1)
            self.assertEqual(metrics.of("round", job="training"), 1)
            self.assertEqual(metrics.of("world_size", job="training"), 2)
            self.assertEqual(metrics.of("nodes", job="training", state="in_round"), 2)
            self.assertEqual(metrics.of("workers"), 1)
            self.assertEqual(metrics.of("restarts_allowed", job="training"), 3)
            self.assertEqual(metrics.of("restarts_total", job="training", reason="worker_failed"), 0)
            self.assertEqual(metrics.of("incident_seconds_count", stage="stopped"), 0)
            self.assertIsNone(metrics.of("incident_last_seconds", stage="stopped"))
        for restarts in 1, 2:
            self.kill_worker(jobs, 1)
            for job in jobs:
                metrics = wait_until(lambda: self.metrics_of_round(job, restarts + 1), "the next round's metrics")
                self.assertEqual(metrics.of("restarts_total", job="training", reason="worker_failed"), restarts)
                self.assertEqual(metrics.of("restarts_total", job="training", reason="node_lost"), 0)
                self.assertEqual(metrics.of("restarts_spent", job="training"), restarts)
                for stage in "detected", "stopped", "re-formed":
                    self.assertEqual(metrics.of("incident_seconds_count", stage=stage), restarts)
                    last = metrics.of("incident_last_seconds", stage=stage)
                    self.assertTrue(0 <= last < 30, (stage, last))
                    self.assertGreaterEqual(metrics.of("incident_seconds_sum", stage=stage), last)
        for job in jobs:
            _, _, err, _ = self.stop(job)
            self.assertEqual(len(re.findall(f"^ddprun: {STAGES}$", err, re.M)), 2, err)

    def metrics_of_round(self, job, number):
        metrics = Metrics(self.url(job))
        return metrics if metrics.of("round", job="training") == number else None

    def test_every_metric_has_help_and_a_type(self):
        host, _ = self.two_nodes()
        families = Metrics(self.url(host)).families
        self.assertGreater(len(families), 15)
        for name, family in families.items():
            self.assertTrue(name.startswith("ddprun_"), name)
            self.assertTrue(family.documentation, name)
            self.assertIn(family.type, ("gauge", "counter", "summary"), name)
            for sample in family.samples:
                self.assertEqual(sample.name.endswith("_total"), family.type == "counter", sample.name)

    def test_a_node_that_is_lost(self):
        host, other = self.two_nodes("--max-restarts=1", nodes="1:2")
        os.kill(other.agent(), signal.SIGKILL)
        os.kill(other.pid, signal.SIGKILL)
        self.heard(1)
        metrics = wait_until(lambda: self.metrics_of_round(host, 2), "the next round's metrics")
        self.assertEqual(metrics.of("restarts_total", job="training", reason="node_lost"), 1)
        self.assertEqual(metrics.of("nodes", job="training", state="in_round"), 1)
        self.assertEqual(metrics.of("incident_seconds_count", stage="detected"), 1)
        reasons = PageReader(fetch(self.url(host))[1]).tables["reasons"]
        self.assertRegex(reasons[0][1], r"^node 1 \(\S+\) was lost: ")

    def test_the_store_and_the_steps(self):
        """A worker's keys in the store are counted, and so are its optimizer's steps."""
        worker = self.script("""
import mmap, os, socket, struct, sys
offset, _, _, path = os.environ["DDPRUN_PAGE"].split(":", 3)
with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
    pages[int(offset):int(offset) + 8] = struct.pack("<Q", 17)
def text(word): return struct.pack("<Q", len(word)) + word
store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
store.sendall(b"\\0" + struct.pack("<I", 0x3C85F7CE) + b"\\1" + text(b"key") + text(b"v" * 1000))
store.sendall(b"\\5" + struct.pack("<Q", 1) + text(b"key"))
store.recv(1)
open(sys.argv[1], "w").write("here\\n")
sys.stdin.close()
import signal; signal.pause()
""", "worker.py")
        job = self.start("--standalone", "--http=0", worker, str(self.ready))
        self.heard(1)
        metrics = Metrics(self.url(job))
        self.assertGreaterEqual(metrics.of("store_keys"), 1)
        self.assertGreater(metrics.of("store_bytes"), 1000)
        self.assertEqual(metrics.of("store_connections"), 1)
        self.assertEqual(metrics.of("worker_steps", rank="0"), 17)


class Page(HttpTest):
    def read(self, host, text):
        """Checks that a page of the node with the rendezvous shows the job, both seats and the
        reason."""
        page = PageReader(text)
        hostname = socket.gethostname()
        self.assertEqual(page.texts["id"], "training")
        self.assertEqual(page.texts["state"], "running")
        self.assertEqual(page.texts["round"], "2")
        self.assertEqual(page.texts["health"].strip(), "healthy")
        self.assertEqual(page.tables["seats"], [["0", hostname, "0", "running"], ["1", hostname, "1", "running"]])
        (reason,) = page.tables["reasons"]
        self.assertRegex(reason[0], r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$")
        self.assertRegex(reason[1], r"^rank 1 .* was killed by SIGKILL")
        for title in f"rank 1 on {hostname}: running", r"round 1, 2 workers; from .*", "round 2, 2 workers; since .*", "rank 1 .* was killed .*":
            self.assertEqual(len(re.findall(f"<title>{title}</title>", text)), 1, title)

    def after_a_restart(self):
        jobs = self.two_nodes("--max-restarts=1")
        self.kill_worker(jobs, 1)
        wait_until(lambda: "round>2<" in fetch(self.url(jobs[0]))[1], "the second round's page")
        return jobs

    def test_shows_jobs_seats_and_reasons(self):
        host, other = self.after_a_restart()
        self.read(host, fetch(self.url(host))[1])
        page = PageReader(fetch(self.url(other))[1])
        self.assertEqual(len(page.tables["seats"]), 1)
        self.assertEqual(len(page.tables["reasons"]), 1)

    @needs_browser
    def test_in_a_browser(self):
        host, _ = self.after_a_restart()
        self.read(host, in_a_browser(self.url(host), self.folder))

    def test_the_token_is_shown_to_nobody(self):
        """Without DDPRUN_TOKEN the id is the token: a page that others can reach does not show
        it."""
        for address, is_shown in ("127.0.0.1", True), ("0.0.0.0", False):
            with self.subTest(address):
                job = self.start("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=secret", f"--http={address}:0",
                                 f"--rdzv-endpoint=127.0.0.1:{self.port}", "/bin/true")
                url = self.url(job).replace("0.0.0.0", "127.0.0.1")
                wait_until(lambda: fetch(url + "healthz")[0] == 200, "a session")
                for path in "", "metrics", "healthz":
                    text = fetch(url + path)[1]
                    self.assertEqual("secret" in text, is_shown and path != "healthz", text)
                self.stop(job)


class SimulatedPages(HttpTest):
    """Pages of made-up jobs in a browser. tests/rendezvous/control/pages checks their texts."""

    def setUp(self):
        super().setUp()
        done = subprocess.run([SIMULATED_PAGES, self.folder], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.costs = {(int(nodes), state): float(cost) for nodes, state, cost in
                      re.findall(r"^ *(\d+) nodes, (\S+) +\d+ bytes +(\S+) ms$", done.stdout, re.M)}

    def test_a_view_costs_little(self):
        """1,000 nodes, ten times what a view may cost: the machine may be busy."""
        self.assertEqual(len(self.costs), 20)
        self.assertLess(max(self.costs[1000, state] for state in ("running", "standing_still", "failed")), 200)

    @needs_browser
    def test_are_read_without_an_error_also_aloud(self):
        browser = Browser(self.folder / "browser")
        self.addCleanup(browser.close)
        for nodes, state in self.costs:
            with self.subTest(nodes=nodes, state=state):
                browser.open((self.folder / f"{nodes}_{state}.html").as_uri())
                self.assertEqual(browser.errors, [])
                items = browser.items()
                self.check_items(nodes, state, [name for role, name in items if role == "listitem"], items)

    def check_items(self, nodes, state, titles, items):
        self.assertIn(("heading", "Job train"), items)
        if state == "nothing":
            return
        self.assertTrue(any(title.startswith("round 1, ") for title in titles), titles)
        self.assertTrue(any("was killed by SIGKILL" in title for title in titles), titles)
        expected = {"running": "running", "standing_still": "stands still", "failed": "stopping"}[state]
        if nodes <= 64:
            self.assertEqual(len([title for title in titles if " on gpu-" in title]), 8 * nodes)
            self.assertEqual(len([title for title in titles if title.endswith(f"on gpu-0: {expected}")]), 1 if state == "standing_still" else 8)
        else:
            self.assertLess(len(titles), 100)
            self.assertTrue(any(title.endswith(f": {expected}") for title in titles), titles)


class Server(HttpTest):
    def standalone(self, *flags):
        job = self.start("--standalone", *flags, self.worker(WAITING))
        self.heard(1)
        return job

    def test_health(self):
        alone = self.start("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-conf=is_host=0", "--http=:0",
                           f"--rdzv-endpoint=127.0.0.1:{self.port}", "/bin/true")
        self.assertEqual(fetch(self.url(alone) + "healthz")[0], 503)
        self.assertIn("rendezvous", fetch(self.url(alone) + "healthz")[1])
        job = self.standalone("--http=:0")
        self.assertEqual(fetch(self.url(job) + "healthz"), (200, "ok\n"))

    def test_other_paths_and_methods(self):
        url = self.url(self.standalone("--http=:0"))
        self.assertEqual(fetch(url + "other")[0], 404)
        self.assertEqual(fetch(url + "metrics", "POST")[0], 405)
        self.assertEqual(fetch(url + "metrics", "HEAD"), (200, ""))

    def test_without_the_flag_nothing_listens(self):
        def listening(job):
            table = subprocess.run(["ss", "-ltnpH"], check=True, capture_output=True, text=True).stdout
            return table.count(f"pid={job.agent()},")
        self.assertEqual([listening(self.standalone(*flags)) for flags in ([], ["--http=:0"])], [1, 2])

    def test_a_port_that_is_taken_is_warned_of(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            code, _, err = self.run_job(f"--http=:{port}", "/bin/true")
        self.assertEqual(code, 0)
        self.assertIn(f"no metrics and no status page: port {port} on 127.0.0.1: address already in use; choose another --http", err)

    def test_quiet_says_nothing(self):
        port = free_port()
        job = self.standalone(f"--http={port}", "--quiet")
        self.assertEqual(fetch(f"http://127.0.0.1:{port}/healthz"), (200, "ok\n"))
        self.assertEqual(self.stop(job)[2].count("http"), 0)

    def test_slow_clients_disturb_nobody(self):
        """200 that send a byte and no more: a restart comes, pages are read, descriptors are
        bounded."""
        jobs = self.two_nodes("--max-restarts=1")
        url = self.url(jobs[0])
        port = int(url.rstrip("/").rpartition(":")[2])
        before = len(os.listdir(f"/proc/{jobs[0].agent()}/fd"))
        slow = []
        for _ in range(200):
            slow.append(socket.create_connection(("127.0.0.1", port)))
            self.addCleanup(slow[-1].close)
            slow[-1].send(b"G")
        begin = time.monotonic()
        self.assertEqual(fetch(url + "healthz"), (200, "ok\n"))
        self.assertLess(time.monotonic() - begin, 3)
        self.assertLessEqual(len(os.listdir(f"/proc/{jobs[0].agent()}/fd")), before + 64)
        self.kill_worker(jobs, 1)


class ReachTest(TwoHosts):
    """The hosts that reach the pages of a program on the first host."""

    FLAGS = (("--http=:9400", []), ("--http=9400", []), ("--http=10.77.0.1:9400", [0, 1]), ("--http=0.0.0.0:9400", [0, 1]))

    def get(self, host, url):
        return subprocess.run(["ip", "netns", "exec", self.hosts[host], sys.executable, "-c", FETCH, url],
                              capture_output=True, text=True)

    def check_reach(self, flag, reached):
        for host in range(2):
            for path in "metrics", "healthz", "":
                got = self.get(host, f"http://10.77.0.1:9400/{path}")
                self.assertEqual(got.returncode == 0, host in reached, got.stderr)
                if host not in reached:
                    self.assertIn("refused", got.stderr)
        within = self.get(0, "http://127.0.0.1:9400/healthz")
        self.assertEqual(within.returncode == 0, "10.77" not in flag, within.stderr)


class Reach(ReachTest):
    def test_only_an_address_that_is_given_is_reached_from_outside(self):
        for flag, reached in self.FLAGS:
            with self.subTest(flag):
                job = self.start_on(0, "--standalone", flag, self.worker(WAITING))
                self.heard(1)
                self.check_reach(flag, reached)
                self.stop(job)


if __name__ == "__main__":
    main()
