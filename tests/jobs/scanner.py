"""A port scan, for tests and benchmarks: connections that are nobody's. Only the standard library.

    python3 scanner.py [--slow N] [--each-second N] PORT...

Until its stdin is closed. It opens so many connections at each port that say next to nothing. Half
of them say no byte. Half of them say the first one of a gRPC client and then one each second. One
that is cut comes again. Each second it sends so many of each kind. Kinds are an HTTP request, the
hello of a TLS client, random bytes, half of HTTP/2's preface. These read until the other side ends,
at most for two seconds. Prints "scanning" when all slow ones have connected once and the others
have begun. At its end it prints one line of JSON: how many came, and how many could not connect.
"""
import argparse
import asyncio
import json
import os
import random
import resource
import ssl
import sys

READ_LIMIT_S = 2
DRIBBLE_S = 1
RECONNECT_S = 0.2
AT_ONCE = 128  # connects of slow ones
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
KINDS = "http", "tls", "random", "half a preface"


def tls_hello():
    wants, says = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(wants, says, server_hostname="scanned")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return says.read()


def first_bytes(kind, hello=tls_hello()):
    return {"http": b"GET / HTTP/1.1\r\nHost: scanned\r\n\r\n", "tls": hello, "random": random.randbytes(64),
            "half a preface": PREFACE[:len(PREFACE) // 2]}[kind]


class Scanner:
    def __init__(self, ports, slow, each_second):
        self.ports, self.slow, self.each_second = ports, slow, each_second
        self.counts = dict.fromkeys((*KINDS, "slow", "not connected"), 0)
        self.are_here, self.gate = asyncio.Event(), asyncio.Semaphore(AT_ONCE)
        self.missing = slow * len(ports)
        self.batches, self.have_begun = 0, asyncio.Event()

    async def connect(self, port, kind):
        try:
            connection = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), READ_LIMIT_S)
        except (OSError, asyncio.TimeoutError):
            self.counts["not connected"] += 1
            return None
        self.counts[kind] += 1
        return connection

    async def come_once(self, port, kind):
        connection = await self.connect(port, kind)
        if connection is None:
            return
        reader, writer = connection
        try:
            writer.write(first_bytes(kind))
            await asyncio.wait_for(reader.read(), READ_LIMIT_S)
        except (OSError, asyncio.TimeoutError):
            pass
        writer.close()

    async def stay(self, port, dribbles):
        is_first = True
        while True:
            async with self.gate:
                connection = await self.connect(port, "slow")
            self.missing -= is_first
            is_first = False
            if self.missing <= 0:
                self.are_here.set()
            if connection is not None:
                await self.say_little(*connection, dribbles)
            # The pace of an unauthenticated peer, not a wait for anything.
            await asyncio.sleep(RECONNECT_S)

    async def say_little(self, reader, writer, dribbles):
        ended = asyncio.ensure_future(reader.read())
        try:
            for byte in PREFACE:
                if dribbles:
                    writer.write(bytes([byte]))
                if await asyncio.wait({ended}, timeout=DRIBBLE_S if dribbles else None) != (set(), {ended}):
                    break
            await ended
        except OSError:
            pass
        finally:
            ended.cancel()
            writer.close()

    async def scan(self, port, tasks):
        for _ in range(self.slow // 2):
            tasks += [asyncio.create_task(self.stay(port, dribbles)) for dribbles in (False, True)]
        while True:
            await asyncio.sleep(1 / self.each_second)
            tasks[:] = [task for task in tasks if not task.done()]
            tasks += [asyncio.create_task(self.come_once(port, kind)) for kind in KINDS]
            self.batches += 1
            if self.batches > len(self.ports):
                self.have_begun.set()

    async def run(self):
        tasks = []
        scans = [asyncio.create_task(self.scan(port, tasks)) for port in self.ports]
        if self.missing > 0:
            await self.are_here.wait()
        await self.have_begun.wait()
        print("scanning", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for task in scans + tasks:
            task.cancel()
        print(json.dumps(self.counts), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", type=int, default=2000)
    parser.add_argument("--each-second", type=float, default=20)
    parser.add_argument("ports", type=int, nargs="+")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(Scanner(options.ports, options.slow // 2 * 2, options.each_second).run())
    os._exit(0)


if __name__ == "__main__":
    main()
