"""Ports that somebody scans: a node joins meanwhile, and what unauthenticated peers cost is
bounded. bench/port_scan has the figures."""

import os
import pathlib
import re
import subprocess
import sys

from daemon_test import DaemonTest
from machine import DEADLINE, free_port, wait_until
from support import main, sanitized, with_variables

SCANNER = str(pathlib.Path(__file__).with_name("scanner.py"))
SLOW = 200  # connections that say next to nothing, at each port
EACH_SECOND = 10  # of each kind, at each port
# Beside the slow ones: those that have just come and not yet been cut, pipes and epoll.
OTHER_DESCRIPTORS = 200
AFTERWARDS = 40  # gRPC's own of a host that had no guest before, and a guest's
SPARE_MIB = 16  # 200 unauthenticated peers whom gRPC has cost 10 KiB each


class Scanned(DaemonTest):
    def listening(self, pid):
        sockets = {self.target(fd) for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
        rows = [row.split() for table in ("/proc/net/tcp", "/proc/net/tcp6") for row in pathlib.Path(table).read_text().splitlines()]
        return sorted({int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets})

    @staticmethod
    def target(fd):
        try:
            return os.readlink(fd)
        except FileNotFoundError:
            return ""

    @staticmethod
    def descriptors(pid):
        return len(os.listdir(f"/proc/{pid}/fd"))

    @staticmethod
    def mib(pid):
        return int(re.search(r"^VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1]) / 1024

    def scanner(self, ports):
        one = subprocess.Popen([sys.executable, SCANNER, f"--slow={SLOW}", f"--each-second={EACH_SECOND}", *map(str, ports)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(one.kill)
        self.assertEqual(one.stdout.readline(), "scanning\n")
        return one

    def check_bounds(self, pid, ports, before, while_scanned):
        scanner = self.scanner(ports)
        while_scanned()
        descriptors, mib = self.descriptors(pid), self.mib(pid)
        said, _ = scanner.communicate(timeout=DEADLINE)
        print(f"ports {ports}: {before[0]} descriptors and {before[1]:.1f} MiB before, {descriptors} and {mib:.1f} meanwhile; {said.strip()}")
        self.assertLess(descriptors, before[0] + SLOW * len(ports) + OTHER_DESCRIPTORS)
        if not sanitized():
            self.assertLess(mib, before[1] + SPARE_MIB)
        # A peer that has hung up costs nothing any more.
        wait_until(lambda: self.descriptors(pid) <= before[0] + AFTERWARDS, "the unauthenticated peers' descriptors to be closed")

    def test_every_port_of_a_host(self):
        gate = self.fifo("gate")
        port, http, health = free_port(), free_port(), free_port()
        env = with_variables(DDPRUN_TOKEN="secret", TORCHELASTIC_HEALTH_CHECK_PORT=str(health))

        def node(is_host, *args, **options):
            return self.start("--nnodes=1:3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                              f"--rdzv-conf=is_host={is_host},last_call_timeout=1,keep_alive_interval=10", *args,
                              self.worker(f"#!/bin/sh\necho $WORLD_SIZE > {{fifo}}\nread word < {gate}\n"), **options)

        host = node(1, f"--http={http}", env=env)
        self.assertEqual(self.heard(1), ["1"])
        pid = host.agent()
        ports = self.listening(pid)
        self.assertLessEqual({port, http, health}, set(ports))
        jobs = [host]

        def somebody_joins():
            jobs.append(node(0, env=with_variables(DDPRUN_TOKEN="secret")))
            self.assertEqual(self.heard(2), ["2", "2"])

        self.check_bounds(pid, ports, (self.descriptors(pid), self.mib(pid)), somebody_joins)
        with open(gate, "w") as file:
            file.write("go\n" * 2)
        self.check_ended(jobs, 0)

    def test_the_port_of_a_daemon(self):
        daemon = self.daemon()
        self.check_ended([self.node(daemon, "before", "1", "/bin/true", conf="is_host=false")], 0)
        pid = daemon.process.pid
        wait_until(lambda: not daemon.status("before")["nodes"], "the node to be gone")
        self.check_bounds(pid, self.listening(pid), (self.descriptors(pid), self.mib(pid)),
                          lambda: self.check_ended([self.node(daemon, "meanwhile", "1", "/bin/true", conf="is_host=false")], 0))
        code, err = daemon.terminate()
        self.assertEqual(code, 0)
        self.assertLess(len(err.splitlines()), 10, err)


if __name__ == "__main__":
    main()
