"""Jobs whose rendezvous is flooded by peers without a token (floods.py). It is on a ddprund and on
a hosting agent, in clear and with TLS."""

import shutil
import socket
import struct
import subprocess
import time
import unittest

import control
import floods
from daemon_test import TOKEN, DaemonTest
from daemon_trust_test import tls_flags
from elastic_test import UNTIL_TOLD
from machine import environment_of, free_port
from support import main, sanitized, with_variables
from tls_test import Authority

CONNECTIONS, RATE = 4, 8000
FLOOD_S = 4
OTHER_FLOOD_S = 2  # of the ports that are not the rendezvous's
ANSWER_S = 5
MEMORY_MIB = 32
# A short lease, some 2 s: a host that is kept busy for longer loses its nodes.
CONF = "keep_alive_interval=1,keep_alive_max_attempt=1,last_call_timeout=600"


class Floods(DaemonTest):
    """Each runs one job of two nodes through several floods."""

    def setUp(self):
        super().setUp()
        self.port, self.tls = free_port(), {}

    def with_tls(self):
        self.tls = Authority(self.folder, "authority").issue("all")

    def job(self, daemon_is_host, *flags):
        """Starts the job; what must stay small."""
        if daemon_is_host:
            self.host = self.daemon(*tls_flags(self.tls))
            self.port = self.host.port
        self.gate = self.fifo("gate")
        conf = ",".join([CONF, *(f"{key}={path}" for key, path in self.tls.items())])
        self.jobs = [self.start("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint=127.0.0.1:{self.port}",
                                f"--rdzv-conf={conf}", "--max-restarts=3", *flags, self.worker(UNTIL_TOLD % self.gate),
                                env=with_variables(DDPRUN_TOKEN=TOKEN)) for _ in range(2)]
        self.heard(2)
        if daemon_is_host:
            return self.host.process.pid
        return next(job.agent() for job in self.jobs if job.listens(self.port))

    def ask(self):
        code, out, err = control.ctl(f"127.0.0.1:{self.port}", "status", "job", *tls_flags(self.tls), token=TOKEN)
        self.assertEqual(code, 0, err)

    def flood(self, pid, kinds, port=None, seconds=FLOOD_S):
        self.ask()  # gRPC is set up
        for kind in kinds:
            before = resident_mib(pid)
            attack = floods.Attack(kind, port or self.port, CONNECTIONS, RATE, seconds)
            self.addCleanup(attack.end)
            took = []
            while attack.process.poll() is None:
                began = time.monotonic()
                self.ask()
                took.append(time.monotonic() - began)
            units, connects = attack.finish()
            more = resident_mib(pid) - before
            print(f"{kind}: {units}/s over {connects} connections/s: ddpctl {max(took):.2f} s, {more:+.1f} MiB")
            self.assertLess(max(took), ANSWER_S, kind)
            if not sanitized():  # a sanitizer keeps what was freed, on purpose
                self.assertLess(more, MEMORY_MIB, kind)

    def ends_well(self):
        """Nobody has noticed anything."""
        with open(self.gate, "w") as file:
            file.write("go\n" * 2)
        for job in self.jobs:
            code, _, err = job.finish()
            self.assertEqual(code, 0, err)
            self.assertNotIn("restart", err)
            job.wait_gone()
        self.assertEqual(self.fifos[self.ready].lines_so_far(), [])

    def survives(self, daemon_is_host, kinds):
        self.flood(self.job(daemon_is_host), kinds)
        self.ends_well()

    def test_calls_at_a_daemon(self):
        self.survives(True, ["calls", "reset", "questions"])

    def test_calls_at_an_agent(self):
        self.survives(False, ["calls", "reset", "questions"])

    def test_control_frames_at_a_daemon(self):
        self.survives(True, ["settings", "ping", "window_update", "priority"])

    def test_control_frames_at_an_agent(self):
        self.survives(False, ["ping", "slow_reader"])

    def test_header_blocks_and_empty_data_at_a_daemon(self):
        self.survives(True, ["continuation", "headers", "empty_data"])

    def test_connections_at_a_daemon(self):
        self.survives(True, ["churn", "connects", "half_open"])

    def test_connections_at_an_agent(self):
        self.survives(False, ["churn", "half_open"])

    def test_slow_peers_at_a_daemon(self):
        self.survives(True, ["bytes", "slow_reader"])

    @unittest.skipUnless(shutil.which("openssl"), "the program openssl is not installed")
    def test_with_tls_at_a_daemon(self):
        self.with_tls()
        self.survives(True, ["calls", "reset", "ping", "tls_hello"])

    @unittest.skipUnless(shutil.which("openssl"), "the program openssl is not installed")
    def test_with_tls_at_an_agent(self):
        self.with_tls()
        self.survives(False, ["calls", "tls_hello"])

    def test_the_status_page_and_the_store_of_an_agent(self):
        http = free_port()
        pid = self.job(False, f"--http=127.0.0.1:{http}")
        owner = next(job for job in self.jobs if job.listens(http))
        worker = owner.worker(next(rank for rank in range(2) if owner.worker(rank)))
        (store,) = (int(entry.split(b"=")[1]) for entry in environment_of(worker) if entry.startswith(b"MASTER_PORT="))
        self.flood(owner.agent(), ["http", "http_half", "http_churn"], http, OTHER_FLOOD_S)
        first = next(job for job in self.jobs if job.listens(store))
        self.flood(first.agent(), ["store", "store_half", "store_churn"], store, OTHER_FLOOD_S)
        self.ends_well()

    def test_a_host_says_its_bounds(self):
        """gRPC's own, in the SETTINGS that it sends first (RFC 9113, section 6.5.2)."""
        with socket.create_connection(("127.0.0.1", self.daemon().port), ANSWER_S) as peer:
            peer.sendall(floods.BEGIN)
            said = b""
            while len(said) < 9 or len(said) < 9 + int.from_bytes(said[:3], "big"):
                said += peer.recv(4096)
        self.assertEqual(said[3], 4, "SETTINGS")
        settings = dict(struct.iter_unpack(">HI", said[9:9 + int.from_bytes(said[:3], "big")]))
        self.assertEqual(settings.get(3), 4, "calls at a time")
        self.assertEqual(settings.get(6), 8192, "bytes of headers")
        self.assertLessEqual(settings.get(5, 16384), 16384, "bytes of a frame")

    def test_a_newcomer_joins_meanwhile(self):
        self.job(True)
        attack = floods.Attack("calls", self.port, 16, RATE)
        self.addCleanup(attack.end)
        began = time.monotonic()
        self.check_ended([self.node(self.host, "other", "1", "/bin/true")], 0)
        self.assertLess(time.monotonic() - began, 2 * ANSWER_S)
        attack.end()
        self.ends_well()


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


if __name__ == "__main__":
    main()
