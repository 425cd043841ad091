"""Nodes in network namespaces that stand for hosts: nothing but the network is shared."""

import shutil
import subprocess
import sys
import unittest
import uuid

from support import PRINT_ENV, ROOT, JobTest, main, parse_env, torch_python, with_variables

sys.path.append(str(ROOT / "tests" / "examples"))
import digits  # noqa: E402  (found by the line above)

TRAINING_DEADLINE = 300  # seconds; it takes some twenty


def can_make_namespaces():
    return shutil.which("ip") and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0


@unittest.skipUnless(can_make_namespaces(), "network namespaces need CAP_SYS_ADMIN and iproute2")
class TwoHosts(JobTest):
    """Two namespaces, joined by a cable."""

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


class NamesWithSeveralAddresses(TwoHosts):
    """The first host has two addresses. Both hosts call it `head`, each by a hosts file of its
    own."""

    OTHER = "10.77.1.1", "fd77::1"

    def setUp(self):
        super().setUp()
        for number, host in enumerate(self.hosts, 1):
            (interface,) = [one for one in self.interfaces(host) if one.startswith("v")]
            self.ip("-n", host, "addr", "add", f"10.77.1.{number}/24", "dev", interface)
            self.ip("-n", host, "addr", "add", f"fd77::{number}/64", "dev", interface, "nodad")

    @staticmethod
    def interfaces(host):
        shown = subprocess.run(["ip", "-n", host, "-o", "link"], check=True, capture_output=True, text=True).stdout
        return [line.split(": ")[1].partition("@")[0] for line in shown.splitlines()]

    def start_knowing(self, host, addresses, *args):
        path = self.folder / f"hosts{uuid.uuid4().hex[:6]}"
        path.write_text("".join(f"{address} head\n" for address in addresses) + "127.0.0.1 localhost\n")
        return self.start(*args, prefix=("ip", "netns", "exec", self.hosts[host], "sh", "-c",
                                         f'mount --bind {path} /etc/hosts && exec "$@"', "sh"))

    def test_a_node_reaches_the_host_at_each_of_them(self):
        script = self.script(PRINT_ENV)
        for flags in (["--rdzv-backend=c10d", "--rdzv-endpoint=head:29400"], ["--master-addr=head", "--master-port=29500"]):
            for here, there in ((["10.77.0.1", "10.77.1.1"], "10.77.1.1"), (["10.77.1.1", "10.77.0.1"], "10.77.0.1"),
                                (["10.77.0.1", "127.0.1.1"], "10.77.1.1"), (["127.0.1.1", "10.77.0.1"], "10.77.1.1"),
                                (["127.0.0.1", "::1"], "10.77.0.1"), (["10.77.0.1", "fd77::1"], "fd77::1"),
                                (["fd77::1", "10.77.0.1"], "10.77.0.1")):
                with self.subTest(flags, here=here, there=there):
                    jobs = [self.start_knowing(host, addresses, "--nnodes=2", "--rdzv-conf=join_timeout=60,timeout=60",
                                               *flags, f"--node-rank={host}", script)
                            for host, addresses in enumerate((here, [there]))]
                    results = [job.finish() for job in jobs]
                    self.assertEqual([code for code, _, _ in results], [0, 0], results)


class Namespaces(TwoHosts):
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

    @unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
    def test_ddp_mnist_runs_on_two_hosts(self):
        # Restarts, since stock PyTorch aborts at its exit now and then ("terminate called without
        # an active exception"). They are rare, and a standby costs as much as a worker: three
        # seconds of a processor.
        digits.write_subset(self.folder, train=320, held_out=50)
        jobs = [self.start_on(host, "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d",
                              "--max-restarts=2", "--standby=0",
                              "--rdzv-endpoint=10.77.0.1:29400", ROOT / "examples/pytorch/ddp_mnist.py", "--epochs=1",
                              f"--data={self.folder}", env=with_variables(PYTHON_EXEC=torch_python()))
                for host in range(2)]
        results = [job.finish(TRAINING_DEADLINE) for job in jobs]
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        self.assertIn("accuracy=", results[0][1] + results[1][1])


if __name__ == "__main__":
    main()
