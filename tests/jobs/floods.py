"""Floods of a port by peers without a token. A host must bear them at its rendezvous, status page
and store. Only the standard library.

  floods.py KIND PORT CONNECTIONS RATE SECONDS [--hold N] [--path PATH]

Sends RATE frames (calls, resets, bytes, connections: see KINDS) a second over all of its
connections together, to 127.0.0.1 alone. It has the lowest priority, and connects again when it is
cut. At its end it prints one line. It says how many a second the kernel took of it, and how often
it connected. PATH: the method of the calls. Used by http2_floods_test.py and bench/floods."""

import argparse
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
    text = (pathlib.Path(__file__).parents[2] / "proto" / name).read_text()
    return re.search(r"^package (\S+);", text, re.MULTILINE)[1]


OPEN_SESSION = f"/{package('rendezvous.proto')}.Rendezvous/OpenSession"
QUESTION = f"/{package('control.proto')}.Control/Ask"
BLOCK = field(b"x", b"y" * 100) * 9
SETTINGS = frame(4)
BEGIN = PREFACE + SETTINGS
GET = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n"
VALIDATE = bytes.fromhex("00cef7853c")  # how a TCPStore client begins
CHECK = b"\x05" + struct.pack("<QQ", 1, 1) + b"k"
SET = b"\x01" + struct.pack("<Q", 1) + b"k" + struct.pack("<Q", 8 << 20)  # and then the value


def client_hello():
    """Returns the first bytes of a TLS client."""
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()


def units_of(path):
    """Returns {KIND: (what a connection says first, what it sends as its unit number N)}. N
    counts from 0 on each connection."""
    its, question = call(path.encode()), call(QUESTION.encode())
    ping = frame(6, 0, 0, b"12345678")
    return {
        "calls": (BEGIN, lambda n: frame(1, 4, 2 * n + 1, its)),
        "questions": (BEGIN, lambda n: frame(1, 4, 2 * n + 1, question)),
        "reset": (BEGIN, lambda n: frame(1, 4, 2 * n + 1, its) + frame(3, 0, 2 * n + 1, struct.pack(">I", 8))),
        "settings": (BEGIN, lambda n: frame(4, 0, 0, struct.pack(">HI", 3, 100))),
        "ping": (BEGIN, lambda n: ping),
        "window_update": (BEGIN, lambda n: frame(8, 0, 0, struct.pack(">I", 1))),
        "priority": (BEGIN, lambda n: frame(2, 0, 2 * n + 1, struct.pack(">IB", 0, 9))),
        "empty_data": (BEGIN + frame(1, 4, 1, its), lambda n: frame(0, 0, 1)),
        "continuation": (BEGIN + frame(1, 0, 1, BLOCK), lambda n: frame(9, 0, 1, BLOCK)),
        "headers": (BEGIN, lambda n: frame(1, 4, 2 * n + 1, its + BLOCK * 16)),
        "bytes": (b"", lambda n: (BEGIN + ping)[n:n + 1] or ping[n % 17:n % 17 + 1]),
        "slow_reader": (BEGIN, lambda n: ping),  # reads no answer
        "churn": (BEGIN + frame(1, 4, 1, its), None),  # connects, says this and goes
        "connects": (b"", None),
        "half_open": (PREFACE[:1], None),  # connects, says this, and stays: as many as --hold
        "tls_hello": (client_hello(), None),
        "http": (b"", lambda n: GET + b"\r\n"),
        "http_head": (GET + b"X: ", lambda n: b"y"),  # a head without an end
        "http_churn": (GET + b"\r\n", None),
        "http_half": (GET, None),
        "store": (VALIDATE, lambda n: CHECK),
        "store_churn": (VALIDATE + CHECK, None),
        "store_half": (VALIDATE + SET + bytes(100), None),
    }


KINDS = tuple(units_of(OPEN_SESSION))
ONE_BY_ONE = ("bytes", "http_head")  # a system call for each
HOLD = ("half_open", "http_half", "store_half")


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
    def __init__(self, kind, port, connections, rate, hold=1000, path=OPEN_SESSION):
        self.kind, self.port, self.rate, self.hold = kind, port, min(rate, MOST_RATE), min(hold, MOST_CONNECTIONS)
        self.begin, self.make = units_of(path)[kind]
        self.selector, self.connects, self.units, self.owed = selectors.DefaultSelector(), 0, 0, 0.0
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
        """The peers share the units; those that one cannot send are left out."""
        self.owed += wanted
        count, self.owed = int(self.owed), self.owed % 1
        for number, peer in enumerate(self.peers):
            self.units += peer.send(count // len(self.peers) + (number < count % len(self.peers)))
        self.peers.append(self.peers.pop(0))  # another one begins next time

    def come_and_go(self, wanted):
        # A busy machine makes some late; a part of those is left out.
        for _ in range(max(1, min(round(wanted), MOST_AT_ONCE))):
            if self.kind in HOLD and len(self.peers) >= self.hold:
                break
            peer = Peer(self)
            self.units += 1
            self.peers.append(peer)
        for peer in self.peers:
            peer.send(0)
        while self.kind not in HOLD and len(self.peers) > 16:
            self.peers.pop(0).close()


class Attack:
    """Floods in a process of its own until it is ended, or its time is over."""

    def __init__(self, kind, port, connections, rate, seconds=MOST_SECONDS, hold=1000, path=OPEN_SESSION):
        self.process = subprocess.Popen([sys.executable, __file__, kind, *map(str, (port, connections, rate, seconds)), f"--hold={hold}", f"--path={path}"],
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("port", type=int)
    parser.add_argument("connections", type=int)
    parser.add_argument("rate", type=float)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--hold", type=int, default=1000)
    parser.add_argument("--path", default=OPEN_SESSION)
    options = parser.parse_args()
    os.nice(19)
    Flood(options.kind, options.port, options.connections, options.rate, options.hold, options.path).go_on(options.seconds)


if __name__ == "__main__":
    main()
