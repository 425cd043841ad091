"""The jobs of bench/floods, and the etcd beside them: what is flooded, and what is measured."""
import http.client
import json
import mmap
import os
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(1, os.path.join(ROOT, "tests", "jobs"))

import etcd  # noqa: E402
import floods  # noqa: E402
from processes import family, free_port, is_listened_on, listens  # noqa: E402

QUIET_S = 2  # steps without a flood
SETTLE_S = 0.5  # for the answers to heartbeats that were sent in the flood
LOOK_S = 0.05
LIMIT_S = 60
TOKEN = {"DDPRUN_TOKEN": "a token of this bench"}
RANGE = "/etcdserverpb.KV/Range"

# Two workers that meet at a socket of the bench's folder. The file `count`: steps done, and
# whether it is over.
WORKER = """
import hashlib, mmap, os, socket, time
folder, data = os.environ["BENCH_FOLDER"], bytes(200_000)
leads = os.environ["BENCH_SIDE"] == "0"
if leads:
    with open(folder + "/store", "w") as file:
        file.write(os.environ["MASTER_PORT"])
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(folder + "/made")
    listening.listen()
    os.rename(folder + "/made", folder + "/steps")
    peer = listening.accept()[0]
    with open(folder + "/count", "r+b") as file:
        shared = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
else:
    while not os.path.exists(folder + "/steps"):
        time.sleep(0.01)
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(folder + "/steps")
running = True
while running:
    hashlib.sha256(data).digest()
    time.sleep(0.004)
    if leads:
        running = not shared[1]
        peer.sendall(b"s" if running else b"e")
        assert peer.recv(1)
        shared[0] += 1
    else:
        running = peer.recv(1) == b"s"
        peer.sendall(b"s")
"""


class Broken(Exception):
    """How the job ended."""


def wait_for(condition, what):
    limit = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > limit:
            raise Broken(f"waited {LIMIT_S} s in vain for {what}")
        time.sleep(0.01)  # a port gives no notice


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


class Watched:
    """By how much the memory of a process grows while this is open."""

    def __init__(self, pid):
        self.pid, self.before, self.over = pid, resident_mib(pid), threading.Event()
        self.most, self.thread = self.before, threading.Thread(target=self.look)

    def look(self):
        while not self.over.wait(LOOK_S):
            try:
                self.most = max(self.most, resident_mib(self.pid))
            except (FileNotFoundError, ProcessLookupError, StopIteration):
                return  # it has ended

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    @property
    def grown(self):
        return self.most - self.before


class Job:
    """Two real nodes, whose workers step together, and light nodes, which send heartbeats."""

    def __init__(self, host, wire, programs, light_nodes):
        """`host`: agent, static or ddprund."""
        self.is_daemon, self.is_static = host == "ddprund", host == "static"
        self.programs, self.rendezvous, self.http = programs, free_port(), free_port()
        self.folder = tempfile.TemporaryDirectory(prefix="bench_floods_")
        self.processes, self.nodes, self.light = [], [], None
        self.pem = etcd.certificates() if wire == "tls" else None
        with open(f"{self.folder.name}/count", "wb") as file:
            file.write(bytes(16))
        with open(f"{self.folder.name}/count", "r+b") as file:
            self.count = mmap.mmap(file.fileno(), 0)
        try:
            self.start(2 + light_nodes)
        except BaseException:
            self.clean()
            raise

    def port(self, name):
        if name != "store":
            return {"rendezvous": self.rendezvous, "http": self.http}[name]
        with open(f"{self.folder.name}/store") as file:
            return int(file.read())

    def path(self):
        return floods.OPEN_SESSION

    def tls(self, before, between):
        names = ("ca", "cert", "key") if self.pem else ()
        return [f"{before}{name}{between}{self.pem}/{name}.pem" for name in names]

    def start(self, nodes):
        if self.is_daemon:
            self.run("ddprund", f"--listen=127.0.0.1:{self.rendezvous}",
                     f"--http=127.0.0.1:{self.http}", *self.tls("--tls-", "="))
            self.wait_for_port()
        for side in range(2):
            self.nodes.append(self.start_node(side, nodes))
            self.wait_for_port()
        first = self.processes[0].pid
        self.host = next(pid for pid in family(first) if listens(pid, self.rendezvous))
        self.light = self.start_light(nodes)
        self.read("joined")
        wait_for(lambda: self.steps() > 0, "the first step")

    def start_node(self, side, nodes):
        conf = ["keep_alive_interval=1,keep_alive_max_attempt=3", *self.tls("tls_", "=")]
        where = [f"--rdzv-endpoint=127.0.0.1:{self.rendezvous}", "--rdzv-backend=c10d"]
        if self.is_static:
            where = ["--master-addr=127.0.0.1", f"--master-port={self.rendezvous}"]
        if side == 0 and not self.is_daemon:
            where.append(f"--http=127.0.0.1:{self.http}")
        return self.run("ddprun", f"--nnodes={nodes}", f"--node-rank={side}", "--max-restarts=0",
                        *where, "--rdzv-id=bench", f"--rdzv-conf={','.join(conf)}", "--no-python",
                        sys.executable, "-c", WORKER,
                        BENCH_SIDE=str(side), BENCH_FOLDER=self.folder.name)

    def start_light(self, nodes):
        words = [f"{self.programs}/bench-floods", str(self.rendezvous), str(nodes - 2), str(nodes)]
        self.processes.append(subprocess.Popen(
            [*words, *([self.pem] if self.pem else [])], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return self.processes[-1]

    def run(self, program, *args, **env):
        with open(f"{self.folder.name}/said", "ab") as said:
            self.processes.append(subprocess.Popen(
                [f"{self.programs}/{program}", *args], env=os.environ | TOKEN | env,
                cwd=self.folder.name, stdin=subprocess.DEVNULL, stdout=said, stderr=said))
        return self.processes[-1]

    def wait_for_port(self):
        wait_for(lambda: is_listened_on(self.rendezvous), "the host's port")

    def read(self, last):
        """{name: value} of what the light nodes print, until that name."""
        found = {}
        while last not in found:
            line = self.light.stdout.readline()
            if not line:
                raise Broken(self.light.communicate()[1].strip() or "the light nodes ended")
            name, value = line.split()
            found[name] = float(value)
        return found

    def tell(self, word):
        try:
            self.light.stdin.write(word)
            self.light.stdin.flush()
        except BrokenPipeError:
            raise Broken("the light nodes ended") from None

    def steps(self):
        return struct.unpack_from("q", self.count)[0]

    def steps_a_second(self, wait):
        began, before = time.monotonic(), self.steps()
        wait()
        return (self.steps() - before) / (time.monotonic() - began)

    def answers(self):
        self.tell("f")
        return self.read("most_ms")

    def measure(self, flood):
        """`flood` returns when it is over."""
        quiet = self.steps_a_second(lambda: time.sleep(QUIET_S))
        self.answers()  # those of before
        with Watched(self.host) as watched:
            steps = self.steps_a_second(flood)
            time.sleep(SETTLE_S)
        return {"steps_quiet": quiet, "steps": steps, "mib": watched.grown, **self.answers()}

    def end(self):
        """The exit codes of the nodes, the light ones last."""
        struct.pack_into("q", self.count, 8, 1)
        self.tell("e")
        return [process.wait(LIMIT_S) for process in (*self.nodes, self.light)]

    def said(self):
        """The last line of the nodes and the daemon."""
        with open(f"{self.folder.name}/said") as file:
            return file.read().strip().rpartition("\n")[2]

    def clean(self):
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.communicate()
        self.folder.cleanup()


class Etcd:
    """One member, and one client that keeps a lease alive."""

    def __init__(self, _host, wire, _programs, _light_nodes):
        self.context, self.connection, flags = None, None, []
        if wire == "tls":
            pem = etcd.certificates()
            flags = [f"--cert-file={pem}/cert.pem", f"--key-file={pem}/key.pem",
                     f"--trusted-ca-file={pem}/ca.pem", "--client-cert-auth"]
            self.context = ssl.create_default_context(cafile=f"{pem}/ca.pem")
            self.context.load_cert_chain(f"{pem}/cert.pem", f"{pem}/key.pem")
        self.etcd = etcd.Etcd(*flags, scheme="https" if wire == "tls" else "http")
        wait_for(self.has_lease, "etcd")

    def port(self, _name):
        return self.etcd.port

    def path(self):
        return RANGE

    def has_lease(self):
        try:
            self.lease = self.ask("lease/grant", TTL=600)["ID"]
            return True
        except (OSError, KeyError, http.client.HTTPException):
            return False

    def ask(self, path, **question):
        if self.connection is None:
            self.connection = (
                http.client.HTTPSConnection("127.0.0.1", self.etcd.port, timeout=LIMIT_S,
                                            context=self.context) if self.context else
                http.client.HTTPConnection("127.0.0.1", self.etcd.port, timeout=LIMIT_S))
        try:
            self.connection.request("POST", f"/v3/{path}", json.dumps(question))
            return json.loads(self.connection.getresponse().read())
        except BaseException:
            self.connection.close()
            self.connection = None
            raise

    def keep_alive(self):
        began = time.monotonic()
        self.ask("lease/keepalive", ID=self.lease)
        return (time.monotonic() - began) * 1000

    def measure(self, flood):
        took, flooding = [], threading.Thread(target=flood)
        with Watched(self.etcd.process.pid) as watched:
            flooding.start()
            while flooding.is_alive():
                took.append(self.keep_alive())
                time.sleep(0.01)
            flooding.join()
        took.sort()
        return {"mib": watched.grown, "answers": len(took), "median_ms": took[len(took) // 2],
                "p99_ms": took[(len(took) - 1) * 99 // 100], "most_ms": took[-1]}

    def end(self):
        return []

    def said(self):
        return ""

    def clean(self):
        if self.connection is not None:
            self.connection.close()
        self.etcd.end()
