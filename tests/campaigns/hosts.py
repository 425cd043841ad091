"""Hosts in network namespaces at one switch, for campaigns, and what runs on them: members of etcd,
daemons. Needs root, ip(8) and nft(8)."""

import atexit
import base64
import contextlib
import ctypes
import itertools
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

from campaign import DDPRUN, skip, wait_until

CLONE_NEWNET = 0x40000000  # setns(2)
LIMIT_S = 60  # nothing that a campaign waits for takes so long
LIBC = ctypes.CDLL(None, use_errno=True)


def beside(name):
    """A program in the folder of the one under test."""
    return str(pathlib.Path(DDPRUN).with_name(name))


def wait_for(condition, what, limit=LIMIT_S):
    """wait_until() with the patience of a campaign."""
    return wait_until(condition, what, limit)


def needed():
    """Skips where no hosts can be made."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nft"):
        skip("needs root, ip(8) and nft(8), for hosts in network namespaces")
    try:
        Network(1).close()
    except subprocess.CalledProcessError as error:
        skip(f"no network of hosts can be made here: {error}")


class Network:
    """So many hosts at one switch, 10.78.0.1 and on. Networks know nothing of each other."""

    numbers = itertools.count()

    def __init__(self, hosts):
        self.tag = f"n{os.getpid() % 100000}x{next(self.numbers)}"
        self.switch = f"{self.tag}sw"
        self.hosts = [f"{self.tag}h{number}" for number in range(hosts)]
        for name in (self.switch, *self.hosts):
            self.ip("netns", "add", name)
        atexit.register(self.close)
        self.ip("-n", self.switch, "link", "add", "name", "bridge0", "type", "bridge")
        self.ip("-n", self.switch, "link", "set", "bridge0", "up")
        for number, host in enumerate(self.hosts):
            self.ip("link", "add", "eth", "netns", host, "type", "veth", "peer", "name", f"p{number}", "netns", self.switch)
            self.ip("-n", self.switch, "link", "set", f"p{number}", "master", "bridge0", "up")
            self.ip("-n", host, "addr", "add", f"{self.address(number)}/24", "dev", "eth")
            self.ip("-n", host, "link", "set", "eth", "up")
            self.ip("-n", host, "link", "set", "lo", "up")

    @staticmethod
    def ip(*args):
        subprocess.run(["ip", *args], check=True)

    @staticmethod
    def address(host):
        return f"10.78.0.{host + 1}"

    def prefix(self, host):
        """Returns the words before a command that is to run there."""
        return ("ip", "netns", "exec", self.hosts[host])

    @contextlib.contextmanager
    def inside(self, host):
        """This thread's sockets are made there."""
        with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{self.hosts[host]}") as there:
            self.enter(there)
            try:
                yield
            finally:
                self.enter(here)

    @staticmethod
    def enter(namespace):
        if LIBC.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def drop(self, host, hooks=("input", "output"), what="drop"):
        """Drops what enters ("input") or leaves ("output") the host."""
        interface = {"input": "iifname", "output": "oifname"}
        chains = [f'chain {hook} {{ type filter hook {hook} priority 0; {interface[hook]} != "lo" {what}; }}' for hook in hooks]
        rules = "table inet broken {\n" + "\n".join(chains) + "\n}\n"
        subprocess.run([*self.prefix(host), "nft", "-f", "-"], input=rules, text=True, check=True)

    def mend(self, host):
        subprocess.run([*self.prefix(host), "nft", "flush", "ruleset"], check=True)

    def close(self):
        atexit.unregister(self.close)
        for name in (self.switch, *self.hosts):
            subprocess.run(["ip", "netns", "del", name], check=False)


class Etcd:
    """Three members of Debian's etcd-server, on the first three hosts."""

    MEMBERS = 3

    def __init__(self, network):
        if not shutil.which("etcd"):
            skip("etcd is not installed (Debian's etcd-server)")
        self.network = network
        # Its syncs take long on a busy disk.
        self.folder = tempfile.TemporaryDirectory(prefix="ddprun_etcd_", dir="/dev/shm")
        self.members = [None] * self.MEMBERS
        for number in range(self.MEMBERS):
            self.start(number)
        wait_for(lambda: self.leader() is not None, "etcd")

    @property
    def endpoint(self):
        return ",".join(f"{self.network.address(number)}:2379" for number in range(self.MEMBERS))

    def start(self, number):
        urls = [f"http://{self.network.address(one)}" for one in range(self.MEMBERS)]
        self.members[number] = subprocess.Popen(
            [*self.network.prefix(number), "etcd", f"--name=m{number}", f"--data-dir={self.folder.name}/{number}",
             f"--listen-client-urls={urls[number]}:2379", f"--advertise-client-urls={urls[number]}:2379",
             f"--listen-peer-urls={urls[number]}:2380", f"--initial-advertise-peer-urls={urls[number]}:2380",
             "--initial-cluster=" + ",".join(f"m{one}={url}:2380" for one, url in enumerate(urls)), "--log-outputs=stderr"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(self, number, path, **question):
        """Through its JSON gateway, which ddprun does not use; None where it does not answer."""
        request = urllib.request.Request(f"http://{self.network.address(number)}:2379/v3/{path}", json.dumps(question).encode())
        with self.network.inside(number):
            try:
                with urllib.request.urlopen(request, timeout=2) as answer:
                    return json.load(answer)
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                return None

    def leader(self):
        """The number of the member that leads; None while there is none."""
        for number in range(self.MEMBERS):
            status = self.ask(number, "maintenance/status")
            if status and status.get("leader", "0") == status["header"]["member_id"]:
                return number
        return None

    def lead_at(self, number):
        """Makes this member the one that leads etcd."""
        def leads():
            old = self.leader()
            if old in (None, number):
                return old == number
            member = self.ask(number, "maintenance/status")["header"]["member_id"]
            self.ask(old, "maintenance/transfer-leadership", targetID=member)
            return False
        wait_for(leads, f"member {number} to lead etcd")

    def kept(self, key):
        """Returns etcd's value of the key; None: it is not there."""
        answers = (self.ask(number, "kv/range", key=base64.b64encode(key.encode()).decode()) for number in range(self.MEMBERS))
        answer = next(filter(None, answers), {})
        return answer["kvs"][0] if answer.get("kvs") else None

    def value(self, key):
        """None if the key is not there."""
        kept = self.kept(key)
        return base64.b64decode(kept["value"]).decode() if kept else None

    def revision(self, key):
        """Returns the revision of the last write."""
        kept = self.kept(key)
        return int(kept["mod_revision"]) if kept else None

    def signal(self, signo, members=range(MEMBERS)):
        for number in members:
            self.members[number].send_signal(signo)
            if signo == signal.SIGKILL:
                self.members[number].wait()

    def close(self):
        for member in self.members:
            if member is not None:
                member.kill()
                member.wait()
        self.folder.cleanup()


class Daemon:
    """A ddprund on a host, in the group g."""

    PORT = 29400

    def __init__(self, network, host, etcd):
        self.network, self.host, self.etcd = network, host, etcd
        self.address = f"{network.address(host)}:{self.PORT}"
        self.start()

    def start(self):
        self.said = []  # (when, line)
        self.process = subprocess.Popen(
            [*self.network.prefix(self.host), beside("ddprund"), f"--listen={self.PORT}", f"--etcd-endpoint={self.etcd.endpoint}", "--group=g"],
            env={**os.environ, "DDPRUN_TOKEN": "campaign"}, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        self.reader = threading.Thread(target=self.listen, args=(self.process.stderr, self.said), daemon=True)
        self.reader.start()

    @staticmethod
    def listen(stream, said):
        for line in stream:
            said.append((time.monotonic(), line))

    def await_word(self, words, since=0):
        """When it said so."""
        return wait_for(lambda: next((when for when, line in list(self.said) if when > since and words in line), None),
                        f"{self.address} to say {words!r}; it said {''.join(line for _, line in self.said)}")

    def await_leads(self, since=0):
        return self.await_word("leads group g from now on", since)

    def await_standby(self, since=0):
        return self.await_word("waits as a standby", since)

    def is_leader(self):
        """Waits until it is known."""
        known = "leads group g from now on", "waits as a standby"
        wait_for(lambda: any(words in line for _, line in list(self.said) for words in known), f"{self.address} to know who leads; it said {self.said}")
        return any(known[0] in line for _, line in list(self.said))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.kill()


def status(network, host, endpoints, job):
    """The job as `ddpctl status` has it; None where nobody answers."""
    done = subprocess.run([*network.prefix(host), beside("ddpctl"), f"--endpoint={endpoints}", "status", job, "--json"],
                          env={**os.environ, "DDPRUN_TOKEN": "campaign"}, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)["jobs"][0] if done.returncode == 0 else None


def heard(daemons, jobs):
    """Returns the output of daemons and jobs so far, to explain a failure."""
    said = [f"{when:.1f} {daemon.address} {line}" for daemon in daemons for when, line in list(daemon.said)]
    for job in jobs:
        os.set_blocking(job.process.stderr.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            said.append(os.read(job.process.stderr.fileno(), 1 << 16).decode())
    return f"at {time.monotonic():.1f}: " + "".join(said)


def median(times):
    return statistics.median(times) if times else 0
