"""Floods of a port by peers without a token: what a rendezvous must bear. Only the standard library.

  floods.py KIND PORT CONNECTIONS RATE SECONDS [--hold N]

Sends RATE frames (calls, resets, bytes, connections: see KINDS) a second over all of its connections together, to 127.0.0.1 alone, with
the lowest priority, and connects again when it is cut. At its end it prints one line: how many a second the kernel took of it, and how
often it connected. Used by http2_floods_test.py and bench/floods."""

import os
import pathlib
import re
import selectors
import socket
import ssl
import struct
import subprocess
import sys
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TICK_S = 0.005
MOST_AT_ONCE = 200
MOST_RATE, MOST_CONNECTIONS, MOST_SECONDS = 50_000, 4_000, 120


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def field(name, value):
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call(path):
    return (b"\x83\x86\x04" + bytes([len(path)]) + path + b"\x01\x01a" + field(b"content-type", b"application/grpc") + field(b"te", b"trailers")
            + field(b"ddprun-rdzv-id-bin", b"am9i") + field(b"ddprun-nonce-bin", b"A" * 43))


def package(name):
    """A call of another version is refused without our doing, and would try nothing."""
    text = (pathlib.Path(__file__).parents[2] / "proto" / name).read_bytes()
    return re.search(rb"^package (\S+);", text, re.MULTILINE)[1]


CALL = call(b"/" + package("rendezvous.proto") + b".Rendezvous/OpenSession")
QUESTION = call(b"/" + package("control.proto") + b".Control/Ask")
BLOCK = field(b"x", b"y" * 100) * 9
SETTINGS = frame(4)
BEGIN = PREFACE + SETTINGS


def client_hello():
    """What a TLS client says first."""
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()


# KIND: what a connection says first, and what it sends as its unit number N (N counts from 0 on each connection).
UNITS = {
    "calls": (BEGIN, lambda n: frame(1, 4, 2 * n + 1, CALL)),
    "questions": (BEGIN, lambda n: frame(1, 4, 2 * n + 1, QUESTION)),
    "reset": (BEGIN, lambda n: frame(1, 4, 2 * n + 1, CALL) + frame(3, 0, 2 * n + 1, struct.pack(">I", 8))),
    "settings": (BEGIN, lambda n: frame(4, 0, 0, struct.pack(">HI", 3, 100))),
    "ping": (BEGIN, lambda n: frame(6, 0, 0, b"12345678")),
    "window_update": (BEGIN, lambda n: frame(8, 0, 0, struct.pack(">I", 1))),
    "priority": (BEGIN, lambda n: frame(2, 0, 2 * n + 1, struct.pack(">IB", 0, 9))),
    "empty_data": (BEGIN + frame(1, 4, 1, CALL), lambda n: frame(0, 0, 1)),
    "continuation": (BEGIN + frame(1, 0, 1, BLOCK), lambda n: frame(9, 0, 1, BLOCK)),
    "headers": (BEGIN, lambda n: frame(1, 4, 2 * n + 1, CALL + BLOCK * 16)),
    "bytes": (b"", lambda n: (BEGIN + frame(6, 0, 0, b"12345678"))[n:n + 1] or frame(6, 0, 0, b"12345678")[n % 17:n % 17 + 1]),
    "slow_reader": (BEGIN, lambda n: frame(6, 0, 0, b"12345678")),  # reads no answer
    "churn": (BEGIN + frame(1, 4, 1, CALL), None),  # connects, says this and goes
    "connects": (b"", None),
    "half_open": (PREFACE[:1], None),  # connects, says this, and stays: as many as --hold
    "tls_hello": (client_hello(), None),
}
KINDS = tuple(UNITS)
ONE_BY_ONE = ("bytes",)  # a system call for each


class Peer:
    """One connection that is made again when it ends."""

    def __init__(self, flood):
        self.flood = flood
        self.socket = None
        self.connect()

    def connect(self):
        self.close()
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.flood.kind == "slow_reader":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect_ex(("127.0.0.1", self.flood.port))
        self.number, self.unsent, self.is_open = 0, self.flood.begin, False
        self.flood.connects += 1
        self.flood.selector.register(self.socket, selectors.EVENT_READ, self)

    def close(self):
        if self.socket is not None:
            self.flood.selector.unregister(self.socket)
            self.socket.close()

    def readable(self):
        if self.flood.kind == "slow_reader" and not self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return
        try:
            if self.socket.recv(65536):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.connect()

    def send(self, units):
        """How many units more the kernel took."""
        made = 0
        try:
            while True:
                if self.unsent:
                    self.unsent = self.unsent[self.socket.send(self.unsent):]
                    if self.unsent:
                        return made
                if made >= units or self.flood.make is None:
                    return made
                step = 1 if self.flood.kind in ONE_BY_ONE else min(units - made, 50)
                self.unsent = b"".join(map(self.flood.make, range(self.number, self.number + step)))
                self.number += step
                made += step
        except BlockingIOError:
            return made
        except OSError:
            self.connect()
            return made


class Flood:
    def __init__(self, kind, port, connections, rate, hold):
        self.kind, self.port, self.rate, self.hold = kind, port, min(rate, MOST_RATE), min(hold, MOST_CONNECTIONS)
        self.begin, self.make = UNITS[kind]
        self.selector, self.connects, self.units = selectors.DefaultSelector(), 0, 0
        self.peers = [Peer(self) for _ in range(min(connections, MOST_CONNECTIONS) if self.make else 0)]

    def go_on(self, seconds):
        began, due = time.monotonic(), 0.0
        while (now := time.monotonic() - began) < min(seconds, MOST_SECONDS):
            wanted, due = self.rate * now - due, self.rate * now
            if self.make:
                self.send(wanted)
            else:
                self.come_and_go(wanted)
            for key, _ in self.selector.select(TICK_S):
                key.data.readable()
        print(f"{self.units / seconds:.0f} {self.connects / seconds:.0f}")

    def send(self, wanted):
        for peer in self.peers:
            self.units += peer.send(max(1, round(wanted / len(self.peers))))

    def come_and_go(self, wanted):
        for _ in range(max(1, min(round(wanted), MOST_AT_ONCE))):  # of what a busy machine made late, some is left out
            if self.kind == "half_open" and len(self.peers) >= self.hold:
                break
            peer = Peer(self)
            self.units += 1
            self.peers.append(peer)
        for peer in self.peers:
            peer.send(0)
        while self.kind != "half_open" and len(self.peers) > 16:
            self.peers.pop(0).close()


class Attack:
    """Floods in a process of its own until it is ended, or its time is over."""

    def __init__(self, kind, port, connections, rate, seconds=MOST_SECONDS, hold=1000):
        self.process = subprocess.Popen([sys.executable, __file__, kind, *map(str, (port, connections, rate, seconds)), "--hold", str(hold)],
                                        stdout=subprocess.PIPE, text=True)

    def finish(self):
        """(units, connects) a second"""
        out, _ = self.process.communicate(timeout=2 * MOST_SECONDS)
        return tuple(map(int, out.split()))

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def main():
    kind, port, connections, rate, seconds = sys.argv[1], *map(float, sys.argv[2:6])
    os.nice(19)
    Flood(kind, int(port), int(connections), rate, int(sys.argv[7]) if sys.argv[6:7] else 1000).go_on(seconds)


if __name__ == "__main__":
    main()
