"""Jobs of several nodes: agents on one host over loopback, and in network namespaces that stand for hosts."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import unittest
import uuid

from support import PRINT_ENV, ROOT, JobTest, free_port, main, parse_env, wait_until

PYTHON = ROOT / ".venv" / "bin" / "python"


class Nodes(JobTest):
    def c10d(self, port, *args, **options):
        return self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                          *args, **options)

    def static(self, port, node_rank, *args, **options):
        return self.start("--nnodes=2", f"--node-rank={node_rank}", "--master-addr=127.0.0.1", f"--master-port={port}",
                          *args, **options)

    def finish_all(self, *jobs, timeout=None):
        results = [job.finish(timeout) for job in jobs]
        for job in jobs:
            job.wait_gone()
        return results

    def envs(self, results):
        for code, _, err in results:
            self.assertEqual(code, 0, err)
        return sorted((parse_env(line) for _, out, _ in results for line in out.splitlines()),
                      key=lambda env: int(env["RANK"]))

    def test_case_44_static(self):
        port = free_port()
        script = self.script(PRINT_ENV)
        second = self.static(port, 1, "--nproc-per-node=2", "--role=b", script)  # before the host is there
        first = self.static(port, 0, "--role=a", script)
        envs = self.envs(self.finish_all(first, second))
        self.assertEqual([(env["RANK"], env["GROUP_RANK"], env["ROLE_NAME"], env["ROLE_RANK"]) for env in envs],
                         [("0", "0", "a", "0"), ("1", "1", "b", "0"), ("2", "1", "b", "1")])
        self.assertEqual({(env["WORLD_SIZE"], env["MASTER_ADDR"], env["MASTER_PORT"]) for env in envs},
                         {("3", "127.0.0.1", str(port))})

    def test_case_45_c10d(self):
        port = free_port()
        script = self.script(PRINT_ENV)
        jobs = [self.c10d(port, "--nproc-per-node=2", script) for _ in range(2)]
        envs = self.envs(self.finish_all(*jobs))
        self.assertEqual([env["RANK"] for env in envs], ["0", "1", "2", "3"])
        self.assertEqual([env["GROUP_RANK"] for env in envs], ["0", "0", "1", "1"])
        self.assertEqual({env["TORCHELASTIC_RUN_ID"] for env in envs}, {"job"})
        self.assertEqual(len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in envs}), 1)

    def test_a_failure_restarts_all_nodes_with_one_count(self):
        for start in "c10d", "static":
            with self.subTest(start):
                fifo = self.fifo(start)
                script = self.script(
                    f'#!/bin/sh\necho "$RANK $TORCHELASTIC_RESTART_COUNT" > {fifo}\n'
                    'test "$TORCHELASTIC_RESTART_COUNT" = 2 && exit 0\nexec sleep 1000\n')
                port = free_port()
                jobs = [self.c10d(port, "--max-restarts=3", script) if start == "c10d" else
                        self.static(port, node, "--max-restarts=3", script) for node in range(2)]
                for attempt in range(2):
                    self.assertEqual(sorted(self.read_lines(fifo, 2)), [f"0 {attempt}", f"1 {attempt}"])
                    victim = next(pid for job in jobs if (pid := job.worker(attempt)))
                    os.kill(victim, signal.SIGKILL)
                self.assertEqual(sorted(self.read_lines(fifo, 2)), ["0 2", "1 2"])
                self.assertEqual([code for code, _, _ in self.finish_all(*jobs)], [0, 0])

    def test_case_54_a_failure_for_good_ends_all_nodes(self):
        fifo = self.fifo()
        script = self.script(f'#!/bin/sh\necho $RANK > {fifo}\nexec sleep 1000\n')
        port = free_port()
        jobs = [self.c10d(port, script) for _ in range(2)]
        self.read_lines(fifo, 2)
        loser = next(job for job in jobs if job.worker(1))
        os.kill(loser.worker(1), signal.SIGKILL)
        results = {job: job.finish(10) for job in jobs}
        self.assertEqual({code for code, _, _ in results.values()}, {1})
        other = next(job for job in jobs if job is not loser)
        self.assertRegex(results[other][2], r"rank 1 .* was killed by SIGKILL")

    def test_case_54_a_finished_node_hears_of_the_failure(self):
        fifo = self.fifo()
        script = self.script(f'#!/bin/sh\ntest $RANK = 0 && exit 0\necho $RANK > {fifo}\nexec sleep 1000\n')
        port = free_port()
        jobs = [self.c10d(port, script) for _ in range(2)]
        self.read_lines(fifo, 1)
        loser = next(job for job in jobs if job.worker(1))
        os.kill(loser.worker(1), signal.SIGKILL)
        self.assertEqual([job.finish(10)[0] for job in jobs], [1, 1])

    def test_case_55_a_signal_while_a_finished_node_waits_for_its_peer(self):
        fifo = self.fifo()
        script = self.script(f'#!/bin/sh\necho $RANK > {fifo}\ntest $RANK = 0 && exit 0\nexec sleep 1000\n')
        port = free_port()
        jobs = [self.c10d(port, script) for _ in range(2)]
        self.read_lines(fifo, 2)
        runner = wait_until(lambda: next((job for job in jobs if job.worker(1)), None), "rank 1")
        waiter = next(job for job in jobs if job is not runner)
        wait_until(lambda: waiter.worker(0) is None, "rank 0's end")
        waiter.process.send_signal(signal.SIGTERM)
        self.assertEqual([job.finish(10)[0] for job in jobs], [1, 1])

    def test_a_killed_agent_is_noticed_at_once(self):
        fifo = self.fifo()
        script = self.script(f'#!/bin/sh\necho $RANK > {fifo}\nexec sleep 1000\n')
        for victim_hosts in False, True:
            with self.subTest(victim_hosts=victim_hosts):
                port = free_port()
                jobs = [self.c10d(port, script) for _ in range(2)]
                self.read_lines(fifo, 2)
                host = next(job for job in jobs if listens(job, port))
                guest = next(job for job in jobs if job is not host)
                victim, survivor = (host, guest) if victim_hosts else (guest, host)
                os.kill(victim.agent(), signal.SIGKILL)
                code, _, err = survivor.finish(5)
                self.assertEqual(code, 1, err)
                self.assertNotEqual(err, "")
                victim.finish(5)
                for job in jobs:
                    job.wait_gone()

    def test_a_wrong_token_is_refused(self):
        port = free_port()
        host = self.c10d(port, "--rdzv-conf=join_timeout=60", "/bin/true", env={**os.environ, "DDPRUN_TOKEN": "open-sesame"})
        wait_until(lambda: listens(host, port), "the rendezvous")
        code, _, err = self.c10d(port, "/bin/true", env={**os.environ, "DDPRUN_TOKEN": "open-barley"}).finish()
        self.assertEqual(code, 1)
        self.assertIn("token", err)
        self.assertNotIn("open-", err)
        self.assertIsNone(host.process.poll())
        guest = self.c10d(port, "/bin/true", env={**os.environ, "DDPRUN_TOKEN": "open-sesame"})
        self.assertEqual([code for code, _, _ in self.finish_all(host, guest)], [0, 0])

    def test_case_56_a_missing_peer(self):
        port = free_port()
        code, _, err = self.run_job("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                                    "--rdzv-conf=join_timeout=1", "/bin/true")
        self.assertEqual(code, 1)
        self.assertIn("1 of 2", err)


def listens(job, port):
    """True if the job's agent listens on the port."""
    inodes = set()
    with open("/proc/net/tcp") as table:
        for row in list(table)[1:]:
            fields = row.split()
            if fields[3] == "0A" and int(fields[1].split(":")[1], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    try:
        folder = pathlib.Path(f"/proc/{job.agent()}/fd")
        return any(os.readlink(fd) in inodes for fd in folder.iterdir())
    except (FileNotFoundError, IndexError):
        return False


def can_make_namespaces():
    return shutil.which("ip") and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0


@unittest.skipUnless(can_make_namespaces(), "network namespaces need CAP_SYS_ADMIN and iproute2")
class Namespaces(JobTest):
    """Two namespaces joined by a cable: nothing but the network is shared."""

    def setUp(self):
        super().setUp()
        tag = uuid.uuid4().hex[:6]
        self.hosts = [f"ddp{tag}a", f"ddp{tag}b"]
        for host in self.hosts:
            self.ip("netns", "add", host)
            self.addCleanup(self.ip, "netns", "del", host)
        self.ip("link", "add", f"v{tag}a", "netns", self.hosts[0], "type", "veth", "peer", "name", f"v{tag}b", "netns",
                self.hosts[1])
        for number, (host, side) in enumerate(zip(self.hosts, "ab"), 1):
            self.ip("-n", host, "addr", "add", f"10.77.0.{number}/24", "dev", f"v{tag}{side}")
            self.ip("-n", host, "link", "set", f"v{tag}{side}", "up")
            self.ip("-n", host, "link", "set", "lo", "up")

    @staticmethod
    def ip(*args):
        subprocess.run(["ip", *args], check=True)

    def start_on(self, host, *args, **options):
        return self.start(*args, prefix=("ip", "netns", "exec", self.hosts[host]), **options)

    def test_two_hosts_agree_on_the_master(self):
        for flags in (["--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29400"],
                      ["--master-addr=10.77.0.1", "--master-port=29500"]):
            with self.subTest(flags):
                script = self.script(PRINT_ENV)
                jobs = [self.start_on(host, "--nnodes=2", "--nproc-per-node=2", *flags, f"--node-rank={host}", script)
                        for host in range(2)]
                results = [job.finish() for job in jobs]
                self.assertEqual([code for code, _, _ in results], [0, 0], results)
                envs = [parse_env(line) for _, out, _ in results for line in out.splitlines()]
                self.assertEqual({env["MASTER_ADDR"] for env in envs} - {"10.77.0.1", "10.77.0.2"}, set())
                self.assertEqual(len({env["MASTER_ADDR"] + env["MASTER_PORT"] for env in envs}), 1)
                self.assertEqual(sorted(env["RANK"] for env in envs), ["0", "1", "2", "3"])

    @unittest.skipUnless(PYTHON.exists(), "needs PyTorch in .venv")
    def test_ddp_mnist_runs_on_two_hosts(self):
        # Restarts, since stock PyTorch aborts at its exit now and then ("terminate called without an active exception").
        jobs = [self.start_on(host, "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--max-restarts=2",
                              "--rdzv-endpoint=10.77.0.1:29400", ROOT / "examples/pytorch/ddp_mnist.py", "--epochs=1",
                              env={**os.environ, "PYTHON_EXEC": str(PYTHON)})
                for host in range(2)]
        results = [job.finish(110) for job in jobs]
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        self.assertIn("accuracy=", results[0][1] + results[1][1])


if __name__ == "__main__":
    main()
