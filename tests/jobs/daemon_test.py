"""Jobs that meet at a ddprund."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import types

import control
from elastic_test import UNTIL_TOLD, WORKER
from links_test import Relay
from machine import DEADLINE, free_port, wait_until
from support import DDPRUN, JobTest, main, with_variables

DDPRUND = os.environ.get("DDPRUND", str(pathlib.Path(DDPRUN).with_name("ddprund")))
TOKEN = "a token of a test"
STANDS_STILL_S = 5


class Daemon:
    """One ddprund, which serves when the constructor returns."""

    def __init__(self, *flags, token=TOKEN, env=None, prefix=(), port=None):
        self.port = port or free_port()
        self.token = token
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DDPRUN_")} | (env or {})
        if token:
            variables["DDPRUN_TOKEN"] = token
        self.process = subprocess.Popen([*prefix, DDPRUND, f"--listen=127.0.0.1:{self.port}", *flags], env=variables, text=True,
                                        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.said = ""
        while f"serves the rendezvous on port {self.port}" not in self.said:
            line = self.process.stderr.readline()
            assert line, f"ddprund ended: {self.said}"
            self.said += line

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    def ctl(self, *words, token=None):
        return control.ctl(self.endpoint, *words, token=token or self.token)

    def status(self, job):
        return control.status(self.endpoint, job, self.token)

    def terminate(self):
        """(exit code, what it said after it served)"""
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, err

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


class DaemonTest(JobTest):
    def daemon(self, *flags, **options):
        daemon = Daemon(*flags, **options)
        self.addCleanup(daemon.end)
        return daemon

    def node(self, daemon, job, nnodes, *args, token=None, conf="last_call_timeout=600", **options):
        env = with_variables(**({"DDPRUN_TOKEN": token or daemon.token} if token or daemon.token else {}))
        return self.start(f"--nnodes={nnodes}", "--rdzv-backend=c10d", f"--rdzv-id={job}", f"--rdzv-endpoint={daemon.endpoint}",
                          f"--rdzv-conf=keep_alive_interval=10,{conf}", *args, env=env, **options)

    def nodes(self, count, daemon, job, nnodes, *args, **options):
        return [self.node(daemon, job, nnodes, *args, **options) for _ in range(count)]

    def check_ended(self, jobs, code, words=""):
        for job in jobs:
            got, _, err = job.finish()
            self.assertEqual(got, code, err)
            self.assertIn(words, err)
            job.wait_gone()


class Serves(DaemonTest):
    def test_two_jobs_at_once(self):
        daemon = self.daemon()
        gates = [self.fifo(f"gate_{name}") for name in "ab"]
        jobs = [self.nodes(2, daemon, name, "2", self.worker(UNTIL_TOLD % gate, f"{name}.sh"))
                for name, gate in zip("ab", gates)]
        self.assertEqual(sorted(line.split()[0] for line in self.heard(4)), ["0/2", "0/2", "1/2", "1/2"])
        code, out, err = daemon.ctl("jobs")
        self.assertEqual(code, 0, err)
        self.assertEqual([line.split()[:4] for line in out.splitlines()[1:]],
                         [[name, "running", "1", "2"] for name in sorted("ab", key=lambda name: out.index(f"\n{name} "))])
        with open(gates[0], "w") as file:
            file.write("go\n" * 2)
        self.check_ended(jobs[0], 0)
        self.assertEqual(wait_until(lambda: daemon.status("a"), "the job")["phase"], "succeeded")
        self.assertEqual(daemon.status("b")["phase"], "running", "it goes on")
        with open(gates[1], "w") as file:
            file.write("go\n" * 2)
        self.check_ended(jobs[1], 0)
        self.assertEqual(daemon.terminate(), (0, ""))

    def test_workers_go_on_when_connections_are_reset(self):
        """Each node finds its session again, and none of another job's."""
        daemon = self.daemon()
        relay = Relay(daemon.port)
        self.addCleanup(relay.end)
        behind_it = types.SimpleNamespace(endpoint=f"127.0.0.1:{relay.port}", token=daemon.token)
        gates = [self.fifo(f"gate_{name}") for name in "ab"]
        jobs = [self.nodes(2, behind_it, name, "2", self.worker(UNTIL_TOLD % gate, f"{name}.sh"), conf="last_call_timeout=600") for name, gate in zip("ab", gates)]
        self.heard(4)
        for _ in range(3):
            carried = relay.carried
            relay.reset()
            wait_until(lambda: relay.carried >= carried + 4, "the next connection of each node")
        for name, gate, nodes in zip("ab", gates, jobs):
            with open(gate, "w") as file:
                file.write("go\n" * 2)
            self.check_ended(nodes, 0, "connecting again, the workers go on")
            shown = daemon.status(name)
            self.assertEqual((shown["phase"], shown["round"], shown["restarts"]), ("succeeded", 1, 0))

    def test_a_node_on_the_daemons_host_joins_as_a_guest(self):
        """Its endpoint is an address of this host, and it asks for nothing else."""
        daemon = self.daemon()
        for conf in "last_call_timeout=600", "is_host=false,last_call_timeout=600":
            jobs = self.nodes(2, daemon, f"job{len(conf)}", "2", self.script("#!/bin/sh\nexit 0\n"), conf=conf)
            self.check_ended(jobs, 0)

    def test_the_timeouts_are_those_of_the_node(self):
        daemon = self.daemon()
        job = self.node(daemon, "few", "2", "/bin/true", conf="join_timeout=1")
        self.check_ended([job], 1, "1 of 2 nodes joined within join_timeout=1 s")
        self.assertEqual(daemon.status("few")["phase"], "failed")

    def test_a_restart_and_a_lost_node(self):
        daemon = self.daemon()
        jobs = self.nodes(3, daemon, "job", "1:3", "--max-restarts=2", self.worker(WORKER))
        self.heard(3)
        os.kill(jobs[2].agent(), signal.SIGKILL)
        self.assertEqual(sorted(line.split()[0] for line in self.heard(2)), ["0/2", "1/2"])
        shown = daemon.status("job")
        self.assertEqual((shown["restarts"], shown["round"], shown["incidents"][0]["kind"]), (1, 2, "failure"))
        # Any node can be drained here: none of them hosts.
        self.assertEqual(daemon.ctl("drain", "job", "0")[0], 0)
        self.assertEqual(self.heard(1)[0].split()[0], "0/1")
        self.assertEqual(daemon.status("job")["restarts"], 1)
        self.assertEqual(daemon.ctl("stop", "job")[0], 0)
        self.assertEqual(sorted(job.finish()[0] for job in jobs[:2]), [0, 1])

    def test_an_id_is_used_again_after_its_jobs_end(self):
        daemon = self.daemon()
        for _ in range(3):
            jobs = self.nodes(2, daemon, "again", "2", self.script("#!/bin/sh\nexit 0\n"))
            self.check_ended(jobs, 0)
        shown = daemon.status("again")
        self.assertEqual((shown["phase"], shown["round"]), ("succeeded", 1), "each is a job of its own")
        self.assertEqual(len(daemon.ctl("jobs")[1].splitlines()), 2)

    def test_ended_jobs_are_forgotten(self):
        daemon = self.daemon("--forget-after=1")
        self.check_ended([self.node(daemon, "short", "1", "/bin/true", conf="is_host=false")], 0)
        wait_until(lambda: daemon.ctl("status", "short")[0] == 4, "the job to be forgotten")


class Refuses(DaemonTest):
    def test_limits_are_named(self):
        daemon = self.daemon("--max-jobs=1", "--max-nodes-per-job=2")
        many = self.node(daemon, "many", "1:3", "/bin/true")
        self.check_ended([many], 1, "--nnodes=1:3 is more than this ddprund allows (--max-nodes-per-job=2)")
        first = self.node(daemon, "first", "2", "/bin/true")
        wait_until(lambda: daemon.status("first"), "the job")
        self.check_ended([self.node(daemon, "second", "2", "/bin/true")], 1, "1 jobs are here already (--max-jobs=1)")
        second = self.node(daemon, "first", "2", "/bin/true")
        self.check_ended([first, second], 0)

    def test_the_limit_of_all_nodes_is_named(self):
        daemon = self.daemon("--max-nodes=2")
        jobs = [self.node(daemon, name, "2", self.worker(WORKER, f"{name}.sh")) for name in "ab"]
        wait_until(lambda: all(daemon.status(name) for name in "ab"), "both jobs")
        self.check_ended([self.node(daemon, "a", "2", "/bin/true")], 1, "as many nodes are here already as this ddprund allows (--max-nodes=2)")
        for name, job in zip("ab", jobs):
            self.assertEqual(daemon.ctl("stop", name)[0], 0)
            self.check_ended([job], 1, "stopped the job")

    def test_memory(self):
        daemon = self.daemon("--max-memory=1")
        self.check_ended([self.node(daemon, "job", "2", "/bin/true")], 1, "MiB of memory already (--max-memory=1)")

    def test_a_wrong_token(self):
        daemon = self.daemon()
        self.check_ended([self.node(daemon, "job", "2", "/bin/true", token="another")], 1, "token")
        self.assertEqual(daemon.ctl("jobs", token="another")[0], 5)
        self.assertEqual(daemon.ctl("status", "job")[0], 4, "it made no job")

    def test_without_a_token_it_warns_and_operators_are_those_of_its_host(self):
        daemon = self.daemon(token=None)
        self.assertIn("no token is set", daemon.said)
        self.check_ended(self.nodes(2, daemon, "open", "2", self.script("#!/bin/sh\nexit 0\n")), 0)
        self.assertEqual(daemon.status("open")["phase"], "succeeded")
        self.assertIn("open", control.ctl(daemon.endpoint, "jobs")[1])

    def test_unauthenticated_peers_learn_its_health_and_nothing_else(self):
        daemon = self.daemon()
        self.assertEqual(unary_call(daemon.port, "/grpc.health.v1.Health/Check", b""), b"\x08\x01", "SERVING")
        self.assertIsNone(unary_call(daemon.port, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", b""))

    def test_usage(self):
        for words, wanted in (["--max-jobs=0"], "--max-jobs=0: expected 1 to 1000000"), (["x"], "x: expected no operands"):
            done = subprocess.run([DDPRUND, *words], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1))
            self.assertIn(wanted, done.stderr)

    def test_a_taken_port(self):
        daemon = self.daemon()
        done = subprocess.run([DDPRUND, f"--listen=127.0.0.1:{daemon.port}"], capture_output=True, text=True,
                              env=os.environ | {"DDPRUN_TOKEN": "x"})
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
        self.assertRegex(done.stderr, f"ddprund: .*{daemon.port}.*--listen")


def unary_call(port, path, message):
    """Returns the first message of a gRPC call's answer. Its HTTP/2 frames are made by hand (RFC
    9113, RFC 7541: literals without indexing)."""
    def frame(kind, flags, stream, payload):
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost", "te": "trailers",
              "content-type": "application/grpc"}
    block = b"".join(b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
                     for name, value in fields.items())
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as connection, connection.makefile("rb") as answer:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, block)
                           + frame(0, 1, 1, b"\0" + len(message).to_bytes(4, "big") + message))
        while head := answer.read(9):
            payload = answer.read(int.from_bytes(head[:3], "big"))
            if head[3] == 0 and payload:  # DATA
                return payload[5:]
            # HEADERS that end the stream: a status without a message
            if head[3] == 1 and head[4] & 1:
                return None
    return None


class Ends(DaemonTest):
    def test_jobs_go_on_when_it_is_started_anew_or_stands_still(self):
        gates = {name: self.fifo(f"gate_{name}") for name in ("killed", "terminated", "stopped")}
        daemons = {name: self.daemon() for name in gates}
        jobs = {name: self.nodes(2, daemons[name], name, "2", self.worker(UNTIL_TOLD % gate, f"{name}.sh")) for name, gate in gates.items()}
        self.heard(2 * len(gates))
        daemons["stopped"].process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        daemons["killed"].end()
        self.assertEqual(daemons["terminated"].terminate(), (0, ""))
        for name in "killed", "terminated":
            daemons[name] = self.daemon(port=daemons[name].port)
            back = lambda: (daemons[name].status(name) or {}).get("phase") == "running"
            wait_until(back, "the round to go on under the next ddprund")
        time.sleep(max(0, began + STANDS_STILL_S - time.monotonic()))  # the span that is tested
        daemons["stopped"].process.send_signal(signal.SIGCONT)
        for name, gate in gates.items():
            with open(gate, "w") as file:
                file.write("go\n" * 2)
            self.check_ended(jobs[name], 0)
            shown = wait_until(lambda: daemons[name].status(name), "the job")
            self.assertEqual((shown["phase"], shown["round"], shown["restarts"]), ("succeeded", 1, 0), name)
        self.assertEqual(self.fifos[self.ready].lines_so_far(), [], "a worker was started anew")

    def test_a_failure_and_a_newcomer_after_it_was_started_anew(self):
        """It knows from the nodes how many restarts are spent, and what their round's number is."""
        daemon = self.daemon()
        jobs = self.nodes(2, daemon, "job", "2:3", "--max-restarts=1", self.worker(WORKER), conf="last_call_timeout=1,resize_interval=1")
        self.heard(2)
        daemon.end()
        daemon = self.daemon(port=daemon.port)
        wait_until(lambda: (daemon.status("job") or {}).get("phase") == "running", "the round to go on")
        jobs.append(self.node(daemon, "job", "2:3", "--max-restarts=1", self.worker(WORKER)))
        self.assertEqual(sorted(line.split()[0] for line in self.heard(3)), ["0/3", "1/3", "2/3"])
        self.assertEqual((daemon.status("job")["round"], daemon.status("job")["restarts"]), (2, 0))
        rank = next(rank for rank in range(3) if jobs[0].worker(rank))
        os.kill(jobs[0].worker(rank), signal.SIGKILL)
        self.heard(3)
        self.assertEqual((daemon.status("job")["round"], daemon.status("job")["restarts"]), (3, 1))
        daemon.end()
        daemon = self.daemon(port=daemon.port)
        wait_until(lambda: (daemon.status("job") or {}).get("phase") == "running", "the round to go on")
        rank = next(rank for rank in range(3) if jobs[0].worker(rank))
        os.kill(jobs[0].worker(rank), signal.SIGKILL)
        self.check_ended(jobs, 1)

    def test_without_resume_sigterm_tells_every_node(self):
        daemon = self.daemon("--resume=off")
        jobs = self.nodes(2, daemon, "job", "2", self.worker(WORKER))
        self.heard(2)
        code, err = daemon.terminate()
        self.assertEqual(code, 0, err)
        self.check_ended(jobs, 1, "ddprund was told to end")

    def waiting_line(self, process):
        """The first line of a wait on its stderr, which is a file."""
        said = []
        for line in process.stderr:
            said.append(line)
            if "waiting for" in line:
                return line
        self.fail(f"it ended: {said}")

    def test_nodes_tell_why_they_wait_for_it(self):
        daemon = self.daemon()
        jobs = self.nodes(2, daemon, "job", "2", self.worker(WORKER))
        self.heard(2)
        daemon.end()
        for job in jobs:
            self.assertRegex(self.waiting_line(job.process), r"waiting for 5 s for the host to let this node in again: "
                             rf"rendezvous at {daemon.endpoint}: not reached: .*Connection refused; the workers go on for \d+ s\n$")
            job.process.send_signal(signal.SIGTERM)
        for job in jobs:
            job.finish()

    def test_a_wait_for_etcd_says_why(self):
        """Tries agents, a node of a group of daemons, and a daemon of that group."""
        etcd = f"127.0.0.1:{free_port()}"
        jobs = [self.start("--nnodes=2", "--rdzv-backend=etcd", f"--rdzv-endpoint={etcd}", "--rdzv-id=waits", *more, "/bin/true")
                for more in ((), ("--rdzv-conf=daemons=g",))]
        daemon = self.daemon(f"--etcd-endpoint={etcd}", "--group=g")
        for job in jobs:
            self.assertRegex(self.waiting_line(job.process),
                             rf"waiting for nodes at the leader that is elected in etcd at {etcd} for 5 s: no host has answered yet, "
                             rf"giving up in \d+ s: etcd does not answer: {etcd}: .*Connection refused")
            job.process.send_signal(signal.SIGTERM)
            job.finish()
        self.assertRegex(self.waiting_line(daemon.process), rf"waiting for 5 s for an answer of etcd at {etcd}: {etcd}: .*Connection refused")

    def test_the_service_manager_is_told(self):
        path = str(self.folder / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(DEADLINE)
            daemon = self.daemon(env={"NOTIFY_SOCKET": path})
            self.assertEqual(manager.recv(100), b"READY=1")
            self.assertEqual(daemon.terminate()[0], 0)
            self.assertEqual(manager.recv(100), b"STOPPING=1")

    def test_the_unit_file_names_what_is_there(self):
        unit = (pathlib.Path(__file__).parents[2] / "daemon" / "ddprund.service").read_text()
        self.assertIn("Type=notify\n", unit)
        (command,) = re.findall(r"^ExecStart=\S*/ddprund (.*)$", unit, re.MULTILINE)
        known = subprocess.run([DDPRUND, "--help"], capture_output=True, text=True).stdout
        for flag in re.findall(r"--[a-z-]+", command):
            self.assertIn(flag, known)


if __name__ == "__main__":
    main()
