"""Nodes that show each other certificates, and what an eavesdropper learns of those that do not."""

import pathlib
import shutil
import socket
import subprocess
import threading
import unittest

import etcd
from machine import free_port, wait_until
from nodes_test import NodesTest
from support import main, with_variables

TOKEN = "open-sesame"
WITH_TOKEN = {"env": with_variables(DDPRUN_TOKEN=TOKEN)}


class Relay:
    """A TCP relay to a port of this host. It keeps what it carried."""

    def __init__(self, port):
        self.to = port
        self.heard = []
        self.of_node = self.of_host = b""  # by side
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                node, _ = self.listener.accept()
            except OSError:
                return
            try:
                node, host = self.connect(node)
            except OSError:
                node.close()
                continue
            for one, other, side in (node, host, "of_node"), (host, node, "of_host"):
                threading.Thread(target=self.carry, args=(one, other, side), daemon=True).start()

    def connect(self, node):
        """Both sides, as they are carried."""
        return node, socket.create_connection(("127.0.0.1", self.to))

    def carry(self, one, other, side):
        try:
            while data := one.recv(1 << 16):
                self.heard.append(data)
                setattr(self, side, getattr(self, side) + data)
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def end(self):
        self.listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self.listener.close()

    @property
    def bytes(self):
        return b"".join(self.heard)


class Authority:
    """Signs certificates, with the program openssl."""

    def __init__(self, folder, name):
        self.folder, self.name = pathlib.Path(folder) / name, name
        self.folder.mkdir()
        self.openssl("req", "-x509", *self.new_key("ca.key"), "-out", "ca.pem", "-subj", f"/CN={name}", "-days", "2")

    def openssl(self, *args):
        subprocess.run(["openssl", *args], cwd=self.folder, check=True, capture_output=True)

    @staticmethod
    def new_key(path):
        return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path

    def issue(self, name, alternative="IP:127.0.0.1", days=2):
        """{conf key: path} of a new certificate of this name."""
        (self.folder / "names").write_text(f"subjectAltName={alternative}\n")
        self.openssl("req", *self.new_key(f"{name}.key"), "-out", "request.pem", "-subj", f"/CN={name}")
        self.openssl("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                     "-out", f"{name}.pem", "-days", str(days), "-extfile", "names")
        return {"tls_ca": str(self.folder / "ca.pem"), "tls_cert": str(self.folder / f"{name}.pem"), "tls_key": str(self.folder / f"{name}.key")}


@unittest.skipUnless(shutil.which("openssl"), "the program openssl is not installed")
class Tls(NodesTest):
    def setUp(self):
        super().setUp()
        self.authority = Authority(self.folder, "authority")
        self.host_files = self.authority.issue("host")
        self.node_files = self.authority.issue("node")

    def node(self, files, *more, port=None, is_host=0, program="/bin/true"):
        conf = ",".join([f"is_host={is_host}", *(f"{key}={value}" for key, value in files.items()), *more])
        return self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port or self.port}",
                          f"--rdzv-conf={conf}", program, **WITH_TOKEN)

    def host(self, *more, files=None):
        job = self.node(self.host_files if files is None else files, *more, is_host=1)
        wait_until(lambda: job.listens(self.port), "the rendezvous")
        return job

    def refused(self, files, *expected):
        """A node with these files is refused by one line, and the job forms without it."""
        host = self.host()
        code, _, err = self.node(files).finish()
        self.assertEqual(code, 1, err)
        (line,) = [line for line in err.splitlines() if "tls_" in line or "TLS" in line or "certificate" in line]
        print(line)
        for words in expected:
            self.assertIn(words, line)
        self.assertNotIn(TOKEN, err)
        guest = self.node(self.node_files)
        results = self.finish([host, guest])
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        return results[0][2]

    def test_right_certificates_and_what_the_wire_shows(self):
        for files, seen in (({}, True), (None, False)):
            with self.subTest("in clear" if seen else "TLS"):
                self.port = free_port()
                host = self.host(files=files)
                relay = Relay(self.port)
                self.addCleanup(relay.end)
                guest = self.node(self.node_files if files is None else {}, port=relay.port)
                results = self.finish([host, guest])
                self.assertEqual([code for code, _, _ in results], [0, 0], results)
                self.assertGreater(len(relay.bytes), 500)
                self.assertEqual(b"ddprun.rendezvous" in relay.bytes, seen)
                self.assertNotIn(TOKEN.encode(), relay.bytes)

    def test_static_nodes_share_the_port_with_the_store(self):
        conf = "--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in self.node_files.items())
        jobs = [self.static(rank, conf, "/bin/true") for rank in range(2)]
        results = self.finish(jobs)
        self.assertEqual([code for code, _, _ in results], [0, 0], results)

    def test_no_certificate(self):
        said = self.refused({}, "it wants TLS: tls_ca, tls_cert and tls_key in --rdzv-conf")
        self.assertIn("refused a connection from 127.0.0.1: it wants TLS", said)

    def test_clear_and_tls_on_one_port(self):
        host = self.host("tls_mixed=true")
        results = self.finish([host, self.node({})])
        self.assertEqual([code for code, _, _ in results], [0, 0], results)

    def test_an_expired_certificate(self):
        files = self.authority.issue("old", days=-1)
        self.refused(files, f"tls_cert={files['tls_cert']}: the certificate has expired, on 20")

    def test_a_foreign_certificate(self):
        files = Authority(self.folder, "foreign").issue("other")
        self.refused(files, f"tls_ca={files['tls_ca']} does not vouch for its certificate: ")

    def test_a_certificate_that_only_the_host_does_not_know(self):
        files = Authority(self.folder, "foreign").issue("other")
        both = self.folder / "both.pem"
        both.write_text(pathlib.Path(files["tls_ca"]).read_text() + pathlib.Path(self.node_files["tls_ca"]).read_text())
        self.refused(files | {"tls_ca": str(both)}, f"it does not accept the certificate in tls_cert={files['tls_cert']}")

    def test_a_swapped_key(self):
        files = self.node_files | {"tls_key": self.host_files["tls_key"]}
        self.refused(files, f"tls_key={files['tls_key']}: the key is not that of the certificate in tls_cert={files['tls_cert']}")

    def test_a_missing_file(self):
        files = self.node_files | {"tls_cert": "/nowhere.pem"}
        self.refused(files, "tls_cert=/nowhere.pem: expected a readable PEM file")

    def test_a_host_of_another_name(self):
        self.host_files = self.authority.issue("elsewhere", alternative="DNS:elsewhere")
        self.host()
        code, _, err = self.node(self.node_files).finish()
        self.assertEqual(code, 1)
        self.assertIn(f"rendezvous at 127.0.0.1:{self.port}: its certificate is not one for 127.0.0.1", err)

    def test_a_host_without_tls(self):
        self.host(files={})
        code, _, err = self.node(self.node_files).finish()
        self.assertEqual(code, 1)
        self.assertIn("it does not take TLS", err)

    def test_certificates_renewed_on_disk_between_two_joins(self):
        host = self.start("--nnodes=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-conf=is_host=1,"
                          + ",".join(f"{key}={value}" for key, value in self.host_files.items()), "/bin/true", **WITH_TOKEN)
        wait_until(lambda: host.listens(self.port), "the rendezvous")
        relay = Relay(self.port)
        self.addCleanup(relay.end)

        def guest(files, port):
            return self.start("--nnodes=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=is_host=0,"
                              + ",".join(f"{key}={value}" for key, value in files.items()), "/bin/true", **WITH_TOKEN)

        before = guest(self.node_files, relay.port)
        # Both certificates and what follows.
        wait_until(lambda: len(relay.bytes) > 3000, "the first join")
        next_one = Authority(self.folder, "next")
        renewed = next_one.issue("host")
        for key, path in renewed.items():
            pathlib.Path(self.host_files[key]).write_text(pathlib.Path(path).read_text())
        after = guest(next_one.issue("node"), self.port)
        results = self.finish([host, before, after])
        self.assertEqual([code for code, _, _ in results], [0, 0, 0], results)

    def test_conf_keys_that_do_not_fit(self):
        for conf, expected in ((f"tls_ca={self.node_files['tls_ca']}", "expected all or none of tls_ca, tls_cert and tls_key"),
                               ("tls_mixed=1", "expected tls_ca, tls_cert and tls_key with tls_mixed"),
                               ("tls_mixed=maybe", "expected tls_mixed to be 1 or 0, true or false, yes or no")):
            code, _, err = self.run_job("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}",
                                        f"--rdzv-conf={conf}", "/bin/true")
            self.assertEqual(code, 1)
            self.assertIn(expected, err)


@etcd.needed
@unittest.skipUnless(shutil.which("openssl"), "the program openssl is not installed")
class TlsOfAnElectedHost(NodesTest):
    def test_followers_and_leader_show_certificates(self):
        member = etcd.Etcd()
        self.addCleanup(member.end)
        authority = Authority(self.folder, "authority")

        def node(name, files):
            conf = ",".join(f"{key}={value}" for key, value in files.items())
            return self.start("--nnodes=2", "--rdzv-backend=etcd", f"--rdzv-endpoint={member.endpoint}", "--rdzv-id=job",
                              f"--rdzv-conf={conf}", "/bin/true", **WITH_TOKEN)

        jobs = [node(name, authority.issue(name)) for name in ("one", "two")]
        results = self.finish(jobs)
        self.assertEqual([code for code, _, _ in results], [0, 0], results)


if __name__ == "__main__":
    main()
