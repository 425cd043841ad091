"""An etcd for tests: Debian's `etcd-server`, one member on free loopback ports, its data in a
temporary folder. Only the standard library. It is asked through its JSON gateway, which ddprun does
not use."""

import base64
import collections
import functools
import json
import shutil
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

from machine import free_port, wait_until

needed = unittest.skipUnless(shutil.which("etcd"), "etcd is not installed (Debian's etcd-server)")


class Etcd:
    """One member that runs until end()."""

    def __init__(self, *flags, scheme="http"):
        self.scheme, self.flags = scheme, flags
        # Its syncs take long on a busy disk.
        self.folder = tempfile.TemporaryDirectory(prefix="ddprun_etcd_", dir="/dev/shm")
        self.port, self.peer_port = free_port(), free_port()
        self.process = None
        self.start()

    def start(self):
        peer, client = f"http://127.0.0.1:{self.peer_port}", f"{self.scheme}://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            ["etcd", "--name=one", f"--data-dir={self.folder.name}/data", f"--listen-client-urls={client}",
             f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
             f"--initial-cluster=one={peer}", "--log-outputs=stderr", *self.flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if self.scheme == "http":
            wait_until(self.answers, "etcd")

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.kill()
        self.folder.cleanup()

    def ask(self, path, token=None, **question):
        request = urllib.request.Request(f"http://{self.endpoint}/v3/{path}", json.dumps(question).encode(),
                                         {"Authorization": token} if token else {})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def answers(self):
        assert self.process.poll() is None, "etcd ended"
        try:
            return self.ask("maintenance/status")["leader"] != "0"
        except (urllib.error.URLError, ConnectionError, KeyError, TimeoutError):
            return False

    def put(self, key, value, seconds):
        """The key goes when the lease of so many seconds ends, or is revoked. Returns the lease."""
        lease = self.ask("lease/grant", TTL=seconds)["ID"]
        self.ask("kv/put", key=base64.b64encode(key.encode()).decode(), value=base64.b64encode(value.encode()).decode(), lease=lease)
        return lease

    def remove(self, key):
        self.ask("kv/deleterange", key=base64.b64encode(key.encode()).decode())

    def revoke(self, lease):
        self.ask("lease/revoke", ID=lease)

    def forget_past(self):
        """Writes a little, and then compacts away all revisions but the last one."""
        key = base64.b64encode(b"/other").decode()
        for _ in range(10):
            revision = self.ask("kv/put", key=key, value=key)["header"]["revision"]
        self.ask("kv/compaction", revision=revision)

    def calls(self):
        """{method: how many calls of it began}"""
        with urllib.request.urlopen(f"http://{self.endpoint}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        begun = collections.Counter()  # etcd counts unary calls and streams apart
        for line in lines:
            if line.startswith("grpc_server_started_total"):
                begun[line.split('grpc_method="')[1].split('"')[0]] += float(line.split()[-1])
        return begun

    def value(self, key):
        """None if the key is not there."""
        pairs = self.ask("kv/range", key=base64.b64encode(key.encode()).decode()).get("kvs", [])
        return base64.b64decode(pairs[0]["value"]).decode() if pairs else None


@functools.cache
def certificates():
    """A folder with an authority's ca.pem, and one certificate for both ends: cert.pem, key.pem.
    Lives as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="ddprun_pem_")
    certificates.folder = folder  # else it would be removed now
    path = folder.name

    def openssl(*args):
        subprocess.run(["openssl", *args], cwd=path, check=True, capture_output=True)

    with open(f"{path}/names", "w") as file:
        file.write("subjectAltName=IP:127.0.0.1\n")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test-authority", "-days", "2")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=test")
    openssl("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "cert.pem", "-days", "2",
            "-extfile", "names")
    return path
