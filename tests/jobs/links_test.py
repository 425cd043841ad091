"""Connections that break between two processes that live: a relay stands between node and host, and
resets them."""

import queue
import selectors
import socket
import struct
import threading
import unittest

from elastic_test import UNTIL_TOLD, WORKER, ElasticTest
from machine import DEADLINE, wait_until
from support import main

RESETS = 5
# Fails when the gate is opened, in the first attempt.
FAILS = """#!/bin/sh
trap 'exit 0' TERM
echo "$RANK/$WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT at x:1" > {fifo}
test $TORCHELASTIC_RESTART_COUNT = 0 && test $RANK = 1 && { read word < GATE; exit 7; }
while :; do sleep 1000 & wait; done
"""


class Relay:
    """Forwards connections to a port of this host, on a thread of its own, which alone touches the
    sockets."""

    def __init__(self, to):
        self.to = to
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.peers = {}  # socket -> the other one
        self.carried = 0  # calls of nodes that went through
        self.is_over = False
        self.orders = queue.Queue()
        self.waker, self.woken = socket.socketpair()
        self.poller = selectors.DefaultSelector()
        for one in self.listener, self.woken:
            self.poller.register(one, selectors.EVENT_READ)
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while not self.is_over:
            for key, _ in self.poller.select():
                if key.fileobj is self.woken:
                    self.woken.recv(1)
                    order, done = self.orders.get()
                    order()
                    done.set()
                elif key.fileobj is self.listener:
                    self.accept()
                elif key.fileobj in self.peers:
                    self.forward(key.fileobj)

    def do(self, order):
        done = threading.Event()
        self.orders.put((order, done))
        self.waker.send(b".")
        assert done.wait(DEADLINE), "the relay does not answer"

    def accept(self):
        node, _ = self.listener.accept()
        try:
            host = socket.create_connection(("127.0.0.1", self.to))
        except OSError:
            return node.close()
        for one, other in (node, host), (host, node):
            self.peers[one] = other
            self.poller.register(one, selectors.EVENT_READ)

    def forward(self, one):
        try:
            data = one.recv(65536)
            if data:
                self.peers[one].sendall(data)
                self.carried += data.startswith(b"PRI")
                return
        except OSError:
            pass
        self.close(one)

    def close(self, one, with_reset=False):
        for each in one, self.peers[one]:
            del self.peers[each]
            self.poller.unregister(each)
            if with_reset:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()

    def close_all(self):
        while self.peers:
            self.close(next(iter(self.peers)), with_reset=True)

    def reset(self):
        """Both ends of each connection see a reset."""
        self.do(self.close_all)

    def hold(self):
        """New connections are taken by the kernel and get no further."""
        self.do(lambda: self.poller.unregister(self.listener))

    def let_go(self):
        self.do(lambda: self.poller.register(self.listener, selectors.EVENT_READ))

    def refuse(self):
        self.hold()
        self.do(self.listener.close)

    def end(self):
        self.is_over = True
        self.do(self.close_all)
        self.thread.join()
        for one in self.listener, self.waker, self.woken:
            one.close()


class LinksTest(ElasticTest):
    def two_nodes(self, *args, conf="last_call_timeout=600,keep_alive_interval=10"):
        """A host, and a node that reaches it through a relay."""
        host = self.node("2", True, *args, conf=conf)
        wait_until(lambda: host.listens(self.port), "the host's port")
        relay = Relay(self.port)
        self.addCleanup(relay.end)
        node = self.start("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint=127.0.0.1:{relay.port}",
                          f"--rdzv-conf=is_host=0,{conf}", *args)
        return host, node, relay

    def open_gate(self, gate, count):
        with open(gate, "w") as file:
            file.write("go\n" * count)


class Links(LinksTest):
    def test_workers_go_on_when_connections_are_reset(self):
        gate = self.fifo("gate")
        host, node, relay = self.two_nodes("--max-restarts=1", self.worker(UNTIL_TOLD % gate))
        self.assertEqual(self.world(2)[0], 0)
        workers = {job: job.worker(0) or job.worker(1) for job in (host, node)}
        for _ in range(RESETS):
            carried = relay.carried
            relay.reset()
            wait_until(lambda: relay.carried > carried, "the node's next connection")
        self.assertEqual({job: job.worker(0) or job.worker(1) for job in (host, node)}, workers)
        self.open_gate(gate, 2)
        for job in host, node:
            code, _, err = job.finish()
            self.assertEqual(code, 0, err)
            job.wait_gone()
        # A try that is broken before the host has let the node in is not told.
        self.assertIn(err.count("connecting again, the workers go on"), range(1, RESETS + 1), err)

    def test_a_failure_is_told_when_the_connection_is_back(self):
        gate = self.fifo("gate")
        host, node, relay = self.two_nodes("--max-restarts=1", self.worker(FAILS.replace("GATE", str(gate))))
        self.assertEqual(self.world(2)[0], 0)
        failing = next(job for job in (host, node) if job.worker(1))
        self.assertIs(failing, node)
        relay.hold()
        relay.reset()
        self.open_gate(gate, 1)
        wait_until(lambda: node.worker(1) is None, "the worker's end")
        self.assertIsNotNone(host.worker(0))
        relay.let_go()
        self.assertEqual(self.world(2)[0], 1)
        self.stop_all([host, node])

    def test_a_killed_agent_is_lost_at_once_also_behind_a_relay(self):
        host, node, relay = self.two_nodes("--max-restarts=1", self.worker(WORKER), conf="last_call_timeout=600,keep_alive_interval=600")
        self.world(2)
        self.kill_whole(node)
        wait_until(lambda: host.worker(0) is None, "the end of the host's worker")
        self.stop_all([host])

    def test_a_node_that_does_not_come_back_is_lost(self):
        conf = "last_call_timeout=600,keep_alive_interval=1"
        host, node, relay = self.two_nodes(self.worker(WORKER), conf=conf)
        self.world(2)
        relay.refuse()
        relay.reset()
        code, _, err = node.finish()
        self.assertEqual(code, 1)
        self.assertIn("the connection broke", err)
        code, _, err = host.finish()
        self.assertEqual(code, 1)
        self.assertIn("was lost", err)
        for job in host, node:
            job.wait_gone()


if __name__ == "__main__":
    main()
