"""Jobs that stand still in part or as a whole (a closed lid, a paused machine, SIGSTOP). Nodes that
are cut off for a while."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types

import etcd
from elastic_test import UNTIL_TOLD, WORKER
from links_test import LinksTest
from machine import free_port, state_of, wait_until
from support import main

STANDS_STILL_S = 5  # longer than a lease of keep_alive_interval=1, and the host's patience
RESETS_S = 1.5
OFTEN = ",keep_alive_interval=2"  # a heartbeat each 0.5 s: each connection is used, and so reset
DOUBT_S = 2.5  # a refusal behind connections that were reset counts after that
ESTABLISHED = "01"  # in /proc/net/tcp
# Prints the leader key of the job at the etcd that is named.
ASK = """
import base64, json, sys, urllib.request
question = json.dumps({"key": base64.b64encode(b"/ddprun/job/leader").decode()}).encode()
with urllib.request.urlopen(f"http://{sys.argv[1]}/v3/kv/range", question, timeout=10) as answer:
    print(base64.b64decode(json.load(answer)["kvs"][0]["value"]).decode())
"""


class Suspended(LinksTest):
    def job(self, name, conf="", *flags):
        """Two nodes of a job of its own; the first hosts. Its workers run until the gate is
        opened."""
        port, fifo, gate = free_port(), self.fifo(f"said_{name}"), self.fifo(f"gate_{name}")
        script = self.script((UNTIL_TOLD % gate).replace("{fifo}", str(fifo)), f"{name}.sh")
        nodes = [self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-id={name}", f"--rdzv-endpoint=127.0.0.1:{port}",
                            f"--rdzv-conf=last_call_timeout=600,is_host={int(is_host)}{conf}", *flags, script)
                 for is_host in (True, False)]
        return types.SimpleNamespace(nodes=nodes, said=fifo, gate=gate)

    def ends(self, job):
        self.open_gate(job.gate, 2)
        for node in job.nodes:
            code, _, err = node.finish()
            self.assertEqual(code, 0, err)
            node.wait_gone()
        self.assertEqual(self.fifos[job.said].lines_so_far(), [], "a worker was started anew")

    @staticmethod
    def send(nodes, signo):
        for node in nodes:
            for pid in (node.pid, *node.processes()):
                # A worker that an agent has ended since.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signo)

    def test_no_worker_is_started_anew_where_nothing_was_lost(self):
        """Several jobs at once; of the last one the lease ends meanwhile, but nobody ran who could
        miss it."""
        whole, host, guest, long = (self.job("whole"), self.job("host"), self.job("guest"),
                                    self.job("long", ",keep_alive_interval=1"))
        jobs = whole, host, guest, long
        for job in jobs:
            self.assertEqual(sorted(line.split()[0] for line in self.read_lines(job.said, 2)), ["0/2", "1/2"])
        still = [*whole.nodes, host.nodes[0], guest.nodes[1], *long.nodes]
        self.send(still, signal.SIGSTOP)
        time.sleep(STANDS_STILL_S)  # the span that is tested
        self.send(still, signal.SIGCONT)
        for job in jobs:
            self.ends(job)

    def test_a_node_that_was_suspended_past_its_lease_comes_back(self):
        """The others have given it up, and so its workers end; it has a seat in the next round."""
        job = self.job("late", ",keep_alive_interval=1", "--max-restarts=1")
        self.read_lines(job.said, 2)
        workers = [job.nodes[rank].worker(rank) for rank in (0, 1)]
        self.send(job.nodes[1:], signal.SIGSTOP)
        wait_until(lambda: job.nodes[0].worker(0) is None, "the end of the host's worker")
        self.send(job.nodes[1:], signal.SIGCONT)
        again = self.read_lines(job.said, 2)
        self.assertEqual(sorted(line.rpartition(" at ")[0] for line in again), ["0/2 restart 1", "1/2 restart 1"])
        self.assertTrue(all(not os.path.exists(f"/proc/{pid}") for pid in workers))
        self.ends(job)

    def test_a_node_that_was_cut_off_past_its_lease_comes_back(self):
        host, node, relay = self.two_nodes("--max-restarts=1", self.worker(WORKER), conf="last_call_timeout=600,keep_alive_interval=1")
        self.world(2)
        relay.hold()
        relay.reset()
        wait_until(lambda: node.worker(1) is None and host.worker(0) is None, "the end of both workers")
        relay.let_go()
        self.assertEqual(self.world(2)[0], 1)
        self.stop_all([host, node])


class StoppedAgent(LinksTest):
    """Somebody stops the agent alone: a debugger, `kill -STOP`. It cannot end its workers when its
    lease is over."""

    def two(self):
        """The second is no host."""
        nodes = [self.start("--nnodes=2", "--max-restarts=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}",
                            f"--rdzv-conf=is_host={int(is_host)},last_call_timeout=600,keep_alive_interval=1", self.worker(WORKER))
                 for is_host in (True, False)]
        self.world(2)
        return nodes

    def test_its_guardian_ends_its_workers_before_the_next_round(self):
        host, node = self.two()
        agent, worker = node.agent(), node.worker(1)
        os.kill(agent, signal.SIGSTOP)
        wait_until(lambda: host.worker(0) is None, "the end of the round")
        self.assertIn(state_of(worker), ("Z", None), "a worker outlived its round")
        self.assertEqual(state_of(agent), "T")
        os.kill(agent, signal.SIGCONT)
        self.assertEqual(self.world(2)[0], 1)
        for job in host, node:
            job.process.send_signal(signal.SIGTERM)
        err = node.finish()[2]
        self.assertEqual(err.count("is stopped, and its lease is over"), 1, err)
        self.assertNotIn("Signal 9", err + host.finish()[2])
        for job in host, node:
            job.wait_gone()

    def test_a_node_without_a_seat_to_return_to_says_why_its_workers_ended(self):
        """Its host is gone as well when it goes on."""
        host, node = self.two()
        os.kill(node.agent(), signal.SIGSTOP)
        worker = node.worker(1)
        self.kill_whole(host)
        wait_until(lambda: state_of(worker) in ("Z", None), "the worker's end")
        os.kill(node.agent(), signal.SIGCONT)
        code, _, err = node.finish()
        self.assertEqual(code, 1)
        self.assertIn("is stopped, and its lease is over", err)
        self.assertNotIn("Signal 9", err)
        node.wait_gone()

    def test_nothing_ends_within_the_lease_nor_where_the_guardian_was_suspended_too(self):
        host, node = self.two()
        workers = [job.worker(rank) for rank, job in enumerate((host, node))]
        os.kill(node.agent(), signal.SIGSTOP)
        time.sleep(1)  # much shorter than the lease of 3.5 s
        os.kill(node.agent(), signal.SIGCONT)
        both = [pid for job in (host, node) for pid in (job.agent(), job.pid)]
        for pid in both:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(STANDS_STILL_S)  # the span that is tested
        for pid in reversed(both):  # the guardians first
            os.kill(pid, signal.SIGCONT)
        time.sleep(2)  # whoever were killed would be so by then
        self.assertEqual([job.worker(rank) for rank, job in enumerate((host, node))], workers)
        self.stop_all([host, node])


class Firewalls(LinksTest):
    """Two hosts, as network namespaces with a wire between them."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0 or not shutil.which("nft") or not shutil.which("ip"):
            self.skipTest("needs root, ip(8) and nft(8), for hosts in network namespaces")
        if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no network namespace can be made here")
        self.hosts = [subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 1000"],
                                       stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for host in self.hosts:
            self.addCleanup(host.communicate)
            self.addCleanup(host.kill)
            self.assertEqual(host.stdout.readline(), "up\n")
        self.on(0, "ip", "link", "add", "eth", "type", "veth", "peer", "name", "eth", "netns", str(self.hosts[1].pid))
        for number in range(2):
            self.on(number, "ip", "address", "add", f"10.78.0.{number + 1}/24", "dev", "eth")
            self.on(number, "ip", "link", "set", "eth", "up")

    def prefix(self, number):
        return "nsenter", f"--net=/proc/{self.hosts[number].pid}/ns/net"

    def on(self, number, *command):
        subprocess.run([*self.prefix(number), *command], check=True)

    def two_hosts(self, *args, backend="c10d", endpoint=None, conf="", nnodes="2"):
        nodes = [self.start(f"--nnodes={nnodes}", f"--rdzv-backend={backend}", "--rdzv-id=job", f"--rdzv-endpoint={endpoint or f'10.78.0.1:{self.port}'}",
                            f"--rdzv-conf=last_call_timeout=600{conf}", *args, prefix=self.prefix(number)) for number in range(2)]
        self.assertEqual(self.world(2)[0], 0)
        return nodes

    def etcd_on(self, number):
        """The endpoint of an etcd on that host."""
        folder = tempfile.TemporaryDirectory(prefix="ddprun_etcd_", dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        client, peer = f"http://10.78.0.{number + 1}:2379", "http://127.0.0.1:2380"
        process = subprocess.Popen([*self.prefix(number), "etcd", "--name=one", f"--data-dir={folder.name}/data", f"--listen-client-urls={client}",
                                    f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                                    f"--initial-cluster=one={peer}", "--log-outputs=stderr"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return client.removeprefix("http://")

    def test_connections_that_are_reset_for_a_while_end_no_node(self):
        gate = self.fifo("gate")
        self.reset_for_a_while(gate, self.two_hosts(self.worker(UNTIL_TOLD % gate), conf=OFTEN))

    @etcd.needed
    def test_connections_that_are_reset_for_a_while_leave_a_leader_its_leadership(self):
        """etcd is on either host: that one reaches it meanwhile, and the other does not."""
        for number in range(2):
            with self.subTest(etcd=number):
                gate = self.fifo(f"gate{number}")
                script = self.worker(UNTIL_TOLD % gate, f"{number}.sh")
                nodes = self.two_hosts("--max-restarts=1", script, backend="etcd", endpoint=self.etcd_on(number), conf=OFTEN)
                told = self.reset_for_a_while(gate, nodes)
                self.assertEqual(self.fifos[self.ready].lines_so_far(), [], f"a worker was started anew: {told}")

    @etcd.needed
    def test_a_leading_agent_of_another_host_that_died_is_followed_at_once(self):
        """The session with it is reset, as by a firewall: it had not read all of it. Its liveness
        connection is closed."""
        endpoint = self.etcd_on(0)
        nodes = self.two_hosts("--max-restarts=1", self.worker(WORKER), backend="etcd", endpoint=endpoint, conf=OFTEN, nnodes="1:2")
        asked = subprocess.run([*self.prefix(0), sys.executable, "-c", ASK, endpoint], stdout=subprocess.PIPE, text=True, check=True)
        _, address, port = asked.stdout.split()[:3]
        leader, guest = nodes if address == "10.78.0.1" else nodes[::-1]
        agent = leader.agent()
        os.kill(agent, signal.SIGSTOP)
        wait_until(lambda: self.has_unread(agent, int(port.removeprefix("port="))), "a heartbeat that is not read")
        begin = time.monotonic()
        self.kill_whole(leader)
        self.assertEqual(self.world(1)[0], 1)
        self.assertLess(time.monotonic() - begin, DOUBT_S)
        self.stop_all([guest])

    @staticmethod
    def has_unread(pid, port):
        """Whether a connection to that port of the process's host has bytes that nobody has
        read."""
        rows = [row.split() for row in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()]
        return any(int(row[1].rpartition(":")[2], 16) == port and int(row[4].rpartition(":")[2], 16) > 0
                   for row in rows if row[3] == ESTABLISHED)

    def reset_for_a_while(self, gate, nodes):
        chain = 'chain {0} {{ type filter hook {0} priority 0; {1} "eth" meta l4proto tcp reject with tcp reset; }}'
        resets = "table inet resets {\n" + chain.format("input", "iifname") + "\n" + chain.format("output", "oifname") + "\n}"
        for number in range(2):
            self.on(number, "nft", resets)
        time.sleep(RESETS_S)  # as long as a firewall takes to load
        for number in range(2):
            self.on(number, "nft", "delete table inet resets")
        time.sleep(2 * RESETS_S)  # a node that was given up would be told by then
        self.open_gate(gate, 2)
        results = [node.finish() for node in nodes]
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        for node in nodes:
            node.wait_gone()
        return [err for _, _, err in results]

    def test_an_agent_of_another_host_that_died_is_lost_soon(self):
        """Its port goes on refusing, which no firewall does that is being loaded."""
        host, node = self.two_hosts("--max-restarts=1", self.worker(WORKER))
        begin = time.monotonic()
        self.kill_whole(node)
        wait_until(lambda: host.worker(0) is None, "the end of the host's worker")
        self.assertLess(time.monotonic() - begin, 20, "a lease is twice as long")
        self.stop_all([host])


if __name__ == "__main__":
    main()
