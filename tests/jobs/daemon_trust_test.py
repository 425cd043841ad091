"""A ddprund and its operators believe certificates. These tests show what an attacker can do that
hears or answers in its place."""

import pathlib
import shutil
import socket
import threading
import unittest

import control
from daemon_test import TOKEN, DaemonTest
from elastic_test import WORKER
from machine import wait_until
from support import main
from tls_test import Authority, Relay

QUIET_S = 2  # a peer that has answered by then and says no more has nothing to say


def tls_flags(files):
    return [f"--{key.replace('_', '-')}={path}" for key, path in files.items()]


@unittest.skipUnless(shutil.which("openssl"), "the program openssl is not installed")
class Certificates(DaemonTest):
    def setUp(self):
        super().setUp()
        self.authority = Authority(self.folder, "authority")
        self.foreign = Authority(self.folder, "foreign")
        self.right = self.authority.issue("right")

    def tls_daemon(self, files=None):
        return self.daemon(*tls_flags(files or self.authority.issue("daemon")))

    def guest(self, daemon, files, *args):
        conf = ",".join(["last_call_timeout=600", *(f"{key}={path}" for key, path in files.items())])
        return self.node(daemon, "job", "1", *args, "/bin/true", conf=f"is_host=false,{conf}")

    def refused(self, files, node_says, operator_says, daemon=None):
        """A node and an operator with these files are refused, each by one line. Those with the
        right ones are not."""
        daemon = daemon or self.tls_daemon()
        code, _, err = self.guest(daemon, files).finish()
        print(err.strip())
        self.assertEqual(code, 1, err)
        self.assertIn(node_says, err)
        code, out, err = daemon.ctl("jobs", *tls_flags(files))
        print(err.strip())
        self.assertEqual((out, len(err.splitlines())), ("", 1), err)
        # 2: the files are no good. 1: somebody answered and refused, so asking again is of no use.
        self.assertEqual(code, 2 if "has expired" in err else 1, err)
        self.assertIn(operator_says, err)
        self.assertNotIn(TOKEN, err)
        return daemon

    def and_the_right_ones_are_not(self, daemon):
        self.check_ended([self.guest(daemon, self.right)], 0)
        code, out, err = daemon.ctl("jobs", *tls_flags(self.right))
        self.assertEqual((code, err), (0, ""), out)
        self.assertIn("job", out)

    def test_right(self):
        self.and_the_right_ones_are_not(self.tls_daemon())

    def test_none(self):
        wants = "it wants TLS: "
        self.and_the_right_ones_are_not(self.refused({}, wants, wants))

    def test_expired(self):
        files = self.authority.issue("old", days=-1)
        says = f"={files['tls_cert']}: the certificate has expired, on 20"
        self.and_the_right_ones_are_not(self.refused(files, says, says))

    def test_foreign(self):
        files = self.foreign.issue("other")
        self.and_the_right_ones_are_not(
            self.refused(files, *[f"tls_ca={files['tls_ca']} does not vouch for its certificate: "] * 2))

    def test_only_the_daemon_does_not_know_it(self):
        files = self.foreign.issue("other")
        both = self.folder / "both.pem"
        both.write_text(pathlib.Path(files["tls_ca"]).read_text() + pathlib.Path(self.right["tls_ca"]).read_text())
        says = f"it does not accept the certificate in tls_cert={files['tls_cert']}"
        self.and_the_right_ones_are_not(self.refused(files | {"tls_ca": str(both)}, says, says))

    def test_a_daemon_of_another_name(self):
        daemon = self.tls_daemon(self.authority.issue("elsewhere", alternative="DNS:elsewhere"))
        says = "its certificate is not one for 127.0.0.1"
        self.refused(self.right, says, says, daemon)

    def test_a_daemon_whose_own_certificate_is_no_good(self):
        files = self.authority.issue("old", days=-1)
        with self.assertRaisesRegex(AssertionError, f"tls_cert={files['tls_cert']}: the certificate has expired"):
            self.tls_daemon(files)


    def test_an_operator_with_certificates_for_a_daemon_in_clear(self):
        code, out, err = self.daemon().ctl("jobs", *tls_flags(self.right))
        print(err.strip())
        self.assertEqual((code, out, len(err.splitlines())), (1, "", 1), err)
        self.assertRegex(err, "it does not take TLS .*: leave out --tls-ca, --tls-cert and --tls-key$")

    def test_an_operator_without_certificates_names_several_daemons(self):
        daemon = self.tls_daemon()
        code, _, err = control.ctl(f"{daemon.endpoint},{daemon.endpoint}", "jobs", token=daemon.token)
        self.assertEqual((code, len(err.splitlines())), (1, 1), err)
        self.assertIn("it wants TLS: expected --tls-ca, --tls-cert and --tls-key", err)


SETTINGS = 4  # RFC 9113, section 6.5


def frames(said):
    """(kind, stream, bytes) of each of HTTP/2's frames."""
    while said:
        size = 9 + int.from_bytes(said[:3], "big")
        yield said[3], int.from_bytes(said[5:9], "big"), said[:size]
        said = said[size:]


class Impostor:
    """Answers each call with what a host said in another one."""

    def __init__(self, said):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.said, self.heard = said, []
        threading.Thread(target=self.answer, daemon=True).start()

    def answer(self):
        while True:
            try:
                caller, _ = self.listener.accept()
            except OSError:
                return
            with caller:
                caller.sendall(b"".join(frame for kind, _, frame in frames(self.said) if kind == SETTINGS))
                caller.settimeout(QUIET_S)
                try:
                    answer = b"".join(frame for _, stream, frame in frames(self.said) if stream > 0)
                    while data := caller.recv(1 << 16):
                        self.heard.append(data)
                        if answer and b"ddprun.control" in b"".join(self.heard):
                            caller.sendall(answer)
                            answer = b""
                except OSError:
                    pass

    def end(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def without_farewell(conversation):
    """Returns a client's words over HTTP/2 (RFC 9113 §4.1), without the frames that end a call.
    They would come before the answer."""
    preface, frames, kept = conversation[:24], conversation[24:], b""
    while len(frames) >= 9:
        size = 9 + int.from_bytes(frames[:3], "big")
        if frames[3] not in (0x03, 0x07):  # RST_STREAM, GOAWAY
            kept += frames[:size]
        frames = frames[size:]
    return preface + kept


class Eavesdroppers(DaemonTest):
    def relay(self, daemon):
        relay = Relay(daemon.port)
        self.addCleanup(relay.end)
        return relay

    @staticmethod
    def through(relay, daemon, *words):
        code, out, err = control.ctl(f"127.0.0.1:{relay.port}", *words, token=daemon.token)
        assert code == 0, err
        return out

    def test_the_wire_shows_no_token_in_clear(self):
        daemon = self.daemon()
        relay = self.relay(daemon)
        self.through(relay, daemon, "jobs")
        self.assertIn(b"ddprun.control", relay.bytes)
        self.assertNotIn(TOKEN.encode(), relay.bytes)

    @unittest.skipUnless(shutil.which("openssl"), "the program openssl is not installed")
    def test_the_wire_shows_nothing_with_tls(self):
        authority = Authority(self.folder, "authority")
        daemon = self.daemon(*tls_flags(authority.issue("daemon")))
        relay = self.relay(daemon)
        self.through(relay, daemon, "jobs", *tls_flags(authority.issue("operator")))
        self.assertGreater(len(relay.bytes), 500)
        for words in b"ddprun.control", TOKEN.encode():
            self.assertNotIn(words, relay.bytes)

    def test_a_question_that_is_said_again_is_refused(self):
        daemon = self.daemon()
        job = self.node(daemon, "job", "1:3", self.worker(WORKER), conf="is_host=false,last_call_timeout=1")
        self.heard(1)
        relay = self.relay(daemon)
        self.through(relay, daemon, "resize", "job", "1:2")
        self.assertEqual(daemon.ctl("resize", "job", "1:3")[0], 0)
        with socket.create_connection(("127.0.0.1", daemon.port)) as again:
            again.sendall(without_farewell(relay.of_node))
            again.settimeout(QUIET_S)
            answer = b""
            try:
                while data := again.recv(1 << 16):
                    answer += data
            except TimeoutError:
                pass
        self.assertIn(b"missing or wrong", answer)
        self.assertEqual(daemon.status("job")["max_nodes"], 3, "nobody has changed it")
        self.assertEqual(daemon.ctl("stop", "job")[0], 0)
        self.check_ended([job], 1)

    def test_a_node_that_is_played_again_is_refused(self):
        daemon = self.daemon()
        relay = self.relay(daemon)
        behind = type("Behind", (), {"endpoint": f"127.0.0.1:{relay.port}", "token": daemon.token})
        self.check_ended([self.node(behind, "job", "1", "/bin/true", conf="is_host=false")], 0)
        with socket.create_connection(("127.0.0.1", daemon.port)) as again:
            again.sendall(without_farewell(relay.of_node))
            again.settimeout(QUIET_S)
            answer = b""
            try:
                while data := again.recv(1 << 16):
                    answer += data
            except TimeoutError:
                pass
        self.assertIn(b"missing or wrong", answer)
        code, err = daemon.terminate()
        self.assertEqual(code, 0)
        self.assertIn("refused a connection from 127.0.0.1: the job's token is missing or wrong", err)

    def test_an_impostor_is_not_believed(self):
        """It says what the daemon said to somebody else; neither a node nor an operator proves
        anything to it."""
        daemon = self.daemon()
        relay = self.relay(daemon)
        self.through(relay, daemon, "jobs")
        impostor = Impostor(relay.of_host)
        self.addCleanup(impostor.end)
        code, out, err = control.ctl(impostor.endpoint, "stop", "job", token=daemon.token)
        self.assertEqual((code, out), (5, ""), err)
        self.assertIn("or the host is an impostor", err)
        wait_until(lambda: impostor.heard, "what the operator said")
        self.assertNotIn(TOKEN.encode(), b"".join(impostor.heard))

    def test_a_daemon_with_another_token_is_an_impostor_to_a_node(self):
        daemon = self.daemon(token="its own")
        self.check_ended([self.node(daemon, "job", "1", "/bin/true", token="another", conf="is_host=false")], 1, "or the host is an impostor")


if __name__ == "__main__":
    main()
