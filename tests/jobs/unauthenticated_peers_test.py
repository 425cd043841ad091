"""Attacks by peers without the token: orders to a job, a look at a secret's file, a place in
between."""

import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import unittest

import control
from control_test import ControlTest
from daemon_test import DaemonTest
from elastic_test import WORKER
from hosts_test import can_unshare
from machine import free_port, wait_until
from nodes_test import NodesTest
from support import DDPRUN, main, with_variables
from tls_test import Authority, Relay

NOBODY = 65534
SOMEBODY = 65533
AS_OTHERS = "another user is taken on by setpriv(1), which needs root"


def as_user(user, *words, endpoint, token=None):
    """ddpctl, as another user: (exit code, stdout, stderr)"""
    done = subprocess.run(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", control.DDPCTL, *words],
                          env=control.environment(endpoint, token), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout, done.stderr


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), AS_OTHERS)
class OrdersWithoutAToken(ControlTest):
    def test_another_user_gives_no_order_and_learns_nothing(self):
        jobs = self.nodes(2, "1:2", self.worker(WORKER))
        self.world(2)
        before = self.status()
        for words in (["stop", "job"], ["drain", "job", "1"], ["resize", "job", "1:1"], ["status", "job"], ["status"], ["nodes", "job"],
                      ["jobs"], ["wait", "job"]):
            code, out, err = as_user(NOBODY, *words, endpoint=self.endpoint)
            self.assertEqual((code, out, len(err.splitlines())), (5, "", 1), (words, err))
            self.assertIn("the job has no token, so it listens to nobody over the network: run ddpctl on the rendezvous's own host", err)
            self.assertIn("DDPRUN_TOKEN", err)
        # The id is no secret, and a guess is none either.
        for token in "job", "none", "a guess of more than sixteen bytes":
            self.assertEqual(as_user(NOBODY, "stop", "job", endpoint=self.endpoint, token=token)[0], 5)
        self.assertEqual(self.status(), before)
        # The same user does, by the host's own socket; also with a token that the job does not
        # have.
        self.assertIn("rounds have 1 to 1 nodes", self.done("resize", "job", "1:1"))
        self.done("resize", "job", "1:2", token="a token of another job")
        self.done("stop", "job")
        for job in jobs:
            self.assertEqual(job.finish()[0], 1)

    def test_a_socket_of_another_user_at_such_a_name_is_not_believed(self):
        """It was there first; the job's own is found all the same."""
        with socket.socket(socket.AF_UNIX) as false:
            os.seteuid(NOBODY)
            try:
                false.bind(f"\0ddprun-operators/127.0.0.1/{self.port}/0000000000000000")
                false.listen()
            finally:
                os.seteuid(0)
            self.assertEqual(self.ctl("jobs")[0], 3, "nobody else answers")
            job = self.node("2", True, self.worker(WORKER))
            wait_until(self.status, "a status")
            self.done("stop", "job")
            self.assertEqual(job.finish()[0], 1)
            false.settimeout(0)
            with self.assertRaises(BlockingIOError, msg="it was connected to, and asked nothing"):
                while True:
                    asker, _ = false.accept()
                    with asker:
                        self.assertEqual(asker.recv(1), b"")


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), AS_OTHERS)
class DaemonsOfOthers(unittest.TestCase):
    def test_root_gives_orders_to_the_daemon_of_a_user_and_no_third_user_does(self):
        port = free_port()
        endpoint = f"127.0.0.1:{port}"
        ddprund = str(pathlib.Path(DDPRUN).with_name("ddprund"))
        daemon = subprocess.Popen(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", ddprund, f"--listen=127.0.0.1:{port}"],
                                  env=control.environment(endpoint), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(daemon.communicate)
        self.addCleanup(daemon.kill)
        while "serves the rendezvous" not in daemon.stderr.readline():
            self.assertIsNone(daemon.poll())
        self.assertEqual(control.ctl(endpoint, "jobs")[0], 0)
        self.assertEqual(as_user(NOBODY, "jobs", endpoint=endpoint)[0], 0)
        code, out, err = as_user(SOMEBODY, "jobs", endpoint=endpoint)
        self.assertEqual((code, out), (5, ""), err)
        self.assertIn("has no token", err)


class SecretsInFiles(NodesTest):
    def test_a_token_file_that_others_can_read_is_refused_with_what_to_type(self):
        file = self.folder / "token"
        file.write_text("0123456789abcdef0123456789abcdef\n")
        for mode, wanted in (0o644, "mode 0644"), (0o640, "mode 0640"), (0o604, "mode 0604"):
            file.chmod(mode)
            job = self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "/bin/true",
                             env=with_variables(DDPRUN_TOKEN_FILE=file))
            code, _, err = job.finish()
            self.assertEqual((code, len(err.splitlines())), (1, 1), err)
            self.assertIn(f"DDPRUN_TOKEN_FILE={file}: others can read it ({wanted}); type: chmod 600 '{file}'", err)
        for mode in 0o600, 0o400:
            file.chmod(mode)
            done = self.start("--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                              "--rdzv-conf=last_call_timeout=1", "--no-python", "/bin/true", env=with_variables(DDPRUN_TOKEN_FILE=file))
            code, _, err = done.finish()
            self.assertEqual(code, 0, err)

    @unittest.skipUnless(os.geteuid() == 0, "a file of another user is made by root")
    def test_a_token_file_of_another_user_is_refused(self):
        file = self.folder / "token"
        file.write_text("0123456789abcdef0123456789abcdef\n")
        file.chmod(0o600)
        os.chown(file, NOBODY, NOBODY)
        code, out, err = control.ctl(f"127.0.0.1:{free_port()}", "jobs", f"--token-file={file}")
        self.assertEqual((code, out), (2, ""))
        self.assertIn(f"--token-file={file}: it belongs to another user (uid {NOBODY}), who can read it; type: chown 0 '{file}'", err)

    @unittest.skipUnless(shutil.which("openssl"), "the program openssl is not installed")
    def test_a_tls_key_that_others_can_read_is_refused(self):
        files = Authority(self.folder, "authority").issue("node")
        os.chmod(files["tls_key"], 0o644)
        conf = ",".join(f"{key}={path}" for key, path in files.items())
        code, _, err = self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--rdzv-conf={conf}",
                                  "/bin/true").finish()
        self.assertEqual(code, 1)
        self.assertIn(f"tls_key={files['tls_key']}: others can read it (mode 0644); type: chmod 600", err)


class TokensOfSchedulers(ControlTest):
    def in_slurm(self, home, **more):
        return with_variables(HOME=home, SLURM_JOB_ID="4711", SLURM_CLUSTER_NAME="lab", **more)

    def test_a_job_of_slurm_has_a_token_that_nobody_asked_for(self):
        """In the user's home, for its nodes and for operators on all of them. A node that does not
        find it joins all the same."""
        home = self.folder / "home"
        home.mkdir()
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        jobs = [self.node("3", True, self.worker(WORKER), env=self.in_slurm(home)),
                self.node("3", False, self.worker(WORKER), env=self.in_slurm(home)),
                self.node("3", False, self.worker(WORKER), env=self.in_slurm(elsewhere))]
        self.world(3)
        file = home / ".ddprun" / "slurm-lab-4711"
        self.assertEqual((file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777), (0o600, 0o700))
        self.assertEqual(len(file.read_text().strip()), 64)
        self.assertEqual([one.name for one in file.parent.iterdir()], [file.name], "and no draft is left")
        other = (elsewhere / ".ddprun" / "slurm-lab-4711").read_text()
        self.assertEqual(self.ctl("stop", "job", token=other.strip())[0], 5, "the token of another home is none")
        self.assertEqual(self.status(token=file.read_text().strip())["phase"], "running")
        if os.geteuid() == 0 and shutil.which("setpriv"):
            self.assertEqual(as_user(NOBODY, "status", "job", endpoint=self.endpoint, token=file.read_text().strip())[0], 0)
            self.assertEqual(as_user(NOBODY, "status", "job", endpoint=self.endpoint)[0], 5)
        self.stop_all(jobs)

    def test_a_home_that_is_not_there_or_not_ours_changes_nothing(self):
        open_home = self.folder / "open"
        (open_home / ".ddprun").mkdir(parents=True)
        (open_home / ".ddprun").chmod(0o777)
        for home in "/nowhere", open_home:
            jobs = [self.node("2", number == 0, "--no-python", "/bin/true", env=self.in_slurm(home)) for number in range(2)]
            for job in jobs:
                code, _, err = job.finish()
                self.assertEqual(code, 0, err)
        self.assertEqual(list((open_home / ".ddprun").iterdir()), [])


@unittest.skipUnless(can_unshare("--mount"), "a secret is mounted in a mount namespace, which needs CAP_SYS_ADMIN")
class SecretsOfPods(ControlTest):
    TOKEN = "0123456789abcdef0123456789abcdef"
    # As a kubelet does: root's, mode 0644, on a tmpfs that is read-only in the pod.
    PREFIX = ("unshare", "--mount", "sh", "-c", """mount -t tmpfs none /run && mkdir -p /run/secrets/ddprun && mount -t tmpfs none /run/secrets/ddprun &&
        echo "$0" > /run/secrets/ddprun/token && chmod 644 /run/secrets/ddprun/token && mount -o "remount,$MODE" /run/secrets/ddprun && exec "$@" """, TOKEN)

    def pod(self, is_host, mode="ro"):
        return self.node("2", is_host, self.worker(WORKER), prefix=self.PREFIX, env=with_variables(KUBERNETES_SERVICE_HOST="10.96.0.1", MODE=mode))

    def test_a_secret_that_is_mounted_is_the_jobs_token(self):
        jobs = [self.pod(True), self.pod(False)]
        self.world(2)
        self.assertEqual(self.status(token=self.TOKEN)["phase"], "running")
        self.check_refused(5, "the job's token is missing or wrong", "status", "job", token="another one of sixteen bytes")
        peer = self.node("2", False, "/bin/true")
        code, _, err = peer.finish()
        self.assertEqual(code, 1)
        self.assertIn("the job's token is missing or wrong", err)
        self.stop_all(jobs)

    def test_one_that_is_not_read_only_is_a_file_as_any_other(self):
        code, _, err = self.pod(True, "rw").finish()
        self.assertEqual(code, 1)
        self.assertIn("/var/run/secrets/ddprun/token: others can read it (mode 0644)", err)


class Between(Relay):
    """Ends TLS of a node with a certificate of the authority, and goes on by TLS to the host. It
    carries the bytes of both."""

    def __init__(self, files, port):
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in self.server, self.client:
            context.load_cert_chain(files["tls_cert"], files["tls_key"])
            context.load_verify_locations(files["tls_ca"])
            context.verify_mode = ssl.CERT_REQUIRED
            context.set_alpn_protocols(["h2"])
        super().__init__(port)

    def connect(self, node):
        _, host = super().connect(node)
        return self.server.wrap_socket(node, server_side=True), self.client.wrap_socket(host, server_hostname="127.0.0.1")


@unittest.skipUnless(shutil.which("openssl"), "the program openssl is not installed")
class InBetweenWithACertificate(DaemonTest):
    """A node of the cluster, or whoever has its key. It does not know the job's token."""

    def setUp(self):
        super().setUp()
        self.authority = Authority(self.folder, "authority")
        files = self.authority.issue("daemon")
        self.serving = self.daemon(*[f"--{key.replace('_', '-')}={path}" for key, path in files.items()])
        self.between = Between(self.authority.issue("between"), self.serving.port)
        self.addCleanup(self.between.end)
        self.behind = type("Behind", (), {"endpoint": f"127.0.0.1:{self.between.port}", "token": self.serving.token})
        self.mine = self.authority.issue("mine")

    def test_a_node_and_a_host_with_somebody_in_between_do_not_believe_each_other(self):
        conf = ",".join(["is_host=false", *(f"{key}={path}" for key, path in self.mine.items())])
        self.check_ended([self.node(self.behind, "job", "1", "/bin/true", conf=conf)], 1, "or the host is an impostor")
        self.assertIn(b"OpenSession", self.between.bytes, "it is in between")
        self.check_ended([self.node(self.serving, "job", "1", "/bin/true", conf=conf)], 0)

    def test_an_operator_with_somebody_in_between_gives_no_order(self):
        flags = [f"--{key.replace('_', '-')}={path}" for key, path in self.mine.items()]
        code, out, err = control.ctl(self.behind.endpoint, "jobs", *flags, token=self.serving.token)
        self.assertEqual((code, out), (5, ""), err)
        self.assertIn(b"Control/Ask", self.between.bytes, "it is in between")
        self.assertEqual(self.serving.ctl("jobs", *flags)[0], 0)


if __name__ == "__main__":
    main()
