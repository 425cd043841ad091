"""Jobs that meet at a group of ddprund, of which one leads."""

import os
import signal
import socket
import subprocess
import time
import urllib.request

import control
import etcd
from daemon_test import DDPRUND, TOKEN, Daemon, DaemonTest, unary_call
from elastic_test import UNTIL_TOLD, WORKER
from machine import DEADLINE, free_port, wait_until
from support import main, with_variables

# The one with rank 0 of three says that it got SIGTERM, and goes on.
DEAF_FIRST = WORKER.replace("trap 'exit 0' TERM", "[ $RANK/$WORLD_SIZE = 0/3 ] && trap 'trap \"\" TERM; echo told > {fifo}' TERM || trap 'exit 0' TERM")
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
HEALTH = "/grpc.health.v1.Health/Check"
# On a busy machine; what it took is printed. The promise is 1 s for a killed one, and 6 s for one
# that stands still.
LEADS_S = 15


@etcd.needed
class GroupTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.etcd = etcd.Etcd()
        self.addCleanup(self.etcd.end)

    def group(self, count, *more):
        """The first one leads."""
        flags = f"--etcd-endpoint={self.etcd.endpoint}", "--group=g", *more
        daemons = []
        for _ in range(count):
            daemons.append(self.daemon(*flags))
            if len(daemons) == 1:
                wait_until(lambda: serves(daemons[0]), "a leader")
        return daemons

    def follower(self, job, nnodes, *args, conf="", **options):
        env = with_variables(DDPRUN_TOKEN=TOKEN)
        return self.start(f"--nnodes={nnodes}", "--rdzv-backend=etcd", f"--rdzv-id={job}", f"--rdzv-endpoint={self.etcd.endpoint}",
                          f"--rdzv-conf=daemons=g,last_call_timeout=600{conf}", *args, env=env, **options)

    def run_until_told(self, job):
        """Two nodes whose workers wait at the gate: (nodes, gate)."""
        gate = self.fifo(f"gate_{job}")
        nodes = [self.follower(job, "2", self.worker(UNTIL_TOLD % gate, f"{job}.sh")) for _ in range(2)]
        self.heard(2)
        return nodes, gate

    def wait_whole(self, daemon, job):
        def is_whole():
            shown = daemon.status(job)
            return shown and shown["phase"] == "running" and [node["state"] for node in shown["nodes"]] == ["running"] * 2
        wait_until(is_whole, "all nodes at the next leader")

    def check_went_on(self, daemon, job, nodes, gate):
        """The workers of the first round end the job, at this leader."""
        self.wait_whole(daemon, job)
        with open(gate, "w") as file:
            file.write("go\n" * 2)
        self.check_ended(nodes, 0)
        shown = daemon.status(job)
        self.assertEqual((shown["phase"], shown["round"], shown["restarts"]), ("succeeded", 1, 0))

    def record(self, job):
        return self.etcd.value(f"/ddprun-daemons/g/jobs/{job}")

    def wait_leads(self, daemon, since):
        wait_until(lambda: serves(daemon), "the standby to lead", LEADS_S)
        print(f"leads after {time.monotonic() - since:.2f} s")


def serves(daemon):
    try:
        return unary_call(daemon.port, HEALTH, b"") == SERVING
    except ConnectionError:
        return False


class OneLeads(GroupTest):
    def test_a_standby_says_who_leads(self):
        leader, standby = self.group(2)
        self.assertEqual(unary_call(standby.port, HEALTH, b""), NOT_SERVING)
        self.assertEqual(leader.ctl("jobs")[0], 0)
        told = f"this ddprund does not lead: 127.0.0.1:{leader.port} "
        code, _, err = wait_until(lambda: (answer := standby.ctl("jobs")) and told in answer[2] and answer, "its answer")
        self.assertEqual((code, len(err.splitlines())), (3, 1), err)
        self.assertEqual(control.ctl(f"{standby.endpoint},{leader.endpoint}", "jobs", token=TOKEN)[0], 0, "it asks both")
        # A node that knows the standby alone tries until its limit.
        node = self.node(standby, "job", "2", "/bin/true", conf="read_timeout=5")
        self.check_ended([node], 1, told)

    def test_metrics_tell_who_leads(self):
        flags = f"--etcd-endpoint={self.etcd.endpoint}", "--group=g"
        ports = [free_port() for _ in range(2)]
        daemons = [self.daemon(*flags, f"--http={port}") for port in ports]
        (leader,) = wait_until(lambda: [port for daemon, port in zip(daemons, ports) if serves(daemon)], "a leader")
        nodes, gate = self.run_until_told("job")
        for port in ports:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE) as answer:
                lines = answer.read().decode().splitlines()
            self.assertIn(f"ddprun_leader {int(port == leader)}", lines)
            self.assertEqual('ddprun_nodes{job="job",state="in_round"} 2' in lines, port == leader, lines)
        with open(gate, "w") as file:
            file.write("go\n" * 2)
        self.check_ended(nodes, 0)

    def test_a_killed_leader(self):
        leader, standby = self.group(2)
        jobs = {name: self.run_until_told(name) for name in "ab"}
        self.assertIn(" runs round=1 ", self.record("a"))
        since = time.monotonic()
        leader.process.kill()
        self.wait_leads(standby, since)
        for name, (nodes, gate) in jobs.items():
            self.check_went_on(standby, name, nodes, gate)
        self.assertIn(" succeeded round=1 ", self.record("a"))

    def test_who_does_not_lead_yet_costs_nothing(self):
        """The key may name one that refuses nodes still, or that dies."""
        daemons = _, standby = self.group(2)
        nodes, gate = self.run_until_told("job")
        lease = self.etcd.put("/ddprun-daemons/g/leader", f"v2 127.0.0.1 port={standby.port} {socket.gethostname()}", seconds=int(DEADLINE))
        refused = f":{standby.port}: not reached: this ddprund does not lead"
        for node in nodes:
            self.read_until(node.process.stderr.fileno(), refused)
        self.etcd.revoke(lease)
        (leader,) = wait_until(lambda: [one for one in daemons if serves(one)], "a leader", LEADS_S)
        self.check_went_on(leader, "job", nodes, gate)

    def test_an_etcd_that_forgot_the_past_is_not_asked_more(self):
        """A watch of a forgotten revision ends at once."""
        (leader,) = self.group(1)
        self.etcd.forget_past()
        standby = self.daemon(f"--etcd-endpoint={self.etcd.endpoint}", "--group=g")
        nodes, gate = self.run_until_told("job")
        before = self.etcd.calls()
        # The standby looks each second, the nodes more rarely.
        wait_until(lambda: self.etcd.calls()["Txn"] >= before["Txn"] + 10, "looks")
        self.assertLessEqual(self.etcd.calls()["Watch"], before["Watch"] + 3)
        self.assertEqual(unary_call(standby.port, HEALTH, b""), NOT_SERVING)
        self.check_went_on(leader, "job", nodes, gate)

    def test_sigterm_hands_over(self):
        leader, standby = self.group(2)
        nodes, gate = self.run_until_told("job")
        since = time.monotonic()
        code, err = leader.terminate()
        self.assertEqual(code, 0, err)
        self.wait_leads(standby, since)
        self.check_went_on(standby, "job", nodes, gate)

    def test_one_alone_is_replaced(self):
        """A service manager does this at an update."""
        (leader,) = self.group(1)
        nodes, gate = self.run_until_told("job")
        self.assertEqual(leader.terminate()[0], 0)
        (leader,) = self.group(1)
        self.check_went_on(leader, "job", nodes, gate)

    def test_a_leader_that_stands_still(self):
        """Woken up, it publishes nothing, and what its job needs is done by the other one."""
        leader, standby = self.group(2)
        nodes = [self.follower("job", "1:2", "--max-restarts=1", self.worker(WORKER)) for _ in range(2)]
        self.heard(2)
        leader.process.send_signal(signal.SIGSTOP)
        self.wait_leads(standby, time.monotonic())
        self.wait_whole(standby, "job")
        leader.process.send_signal(signal.SIGCONT)
        wait_until(lambda: "leads group g no more" in leader.process.stderr.readline(), "the old leader to know")
        wait_until(lambda: unary_call(leader.port, HEALTH, b"") == NOT_SERVING, "a standby")
        self.assertEqual(standby.status("job")["round"], 1)
        os.kill(nodes[1].agent(), signal.SIGKILL)
        self.assertEqual(self.heard(1)[0].split()[:4], ["0/1", "restart", "1", "at"])
        self.assertEqual(standby.ctl("stop", "job")[0], 0)
        self.assertEqual(nodes[0].finish()[0], 1)

    def test_a_drain_goes_on_at_the_next_leader(self):
        leader, standby = self.group(2)
        nodes = [self.follower("job", "2:3", "--shutdown-timeout=600", self.worker(DEAF_FIRST)) for _ in range(3)]
        self.heard(3)
        self.assertEqual(leader.ctl("drain", "job", "0", "--deadline", "4")[0], 0)
        self.heard(1)
        leader.process.kill()
        self.wait_leads(standby, time.monotonic())
        self.assertEqual([line.split()[:3] for line in sorted(self.heard(2))], [["0/2", "restart", "0"], ["1/2", "restart", "0"]])
        (drained,) = wait_until(lambda: [node for node in nodes if node.process.poll() is not None], "its end")
        said = drained.finish()[2]
        self.assertEqual(drained.process.returncode, 0, said)
        self.assertIn("an operator drained this node", said)
        self.assertNotIn("start again", said)
        shown = standby.status("job")
        self.assertEqual((shown["restarts"], len(shown["nodes"])), (0, 2))
        self.assertEqual(standby.ctl("stop", "job")[0], 0)
        for node in nodes:
            if node is not drained:
                self.assertEqual(node.finish()[0], 1)

    def test_usage(self):
        for words, wanted in (["--group=g"], "expected --etcd-endpoint with them"), \
                (["--etcd-endpoint=h", "--group=a/b"], "--group=a/b: expected a group of 1 to 64 letters"), \
                (["--etcd-endpoint=h", "--etcd-conf=daemons=g"], "--etcd-conf=daemons=g: expected keys of etcd_prefix, protocol"):
            done = subprocess.run([DDPRUND, *words], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1), done.stderr)
            self.assertIn(wanted, done.stderr)


if __name__ == "__main__":
    main()
