"""The engine on several hosts: two agents on this host, which share nothing but loopback, stand for
them."""

import os
import socket
import subprocess
import sys
import tempfile
import unittest

import digits
import support

DDPRUN = os.environ.get("DDPRUN", str(support.ROOT / "build" / "bin" / "ddprun"))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class MnistHosts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        digits.write_subset(folder.name, train=330, held_out=77)
        self.flags = ["--data", folder.name, "--epochs=2"]

    def on_one_host(self, workers):
        done = support.run(DDPRUN, "--standalone", f"--nproc-per-node={workers}", "--no-python", support.MNIST, *self.flags)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def on_hosts(self, *workers):
        """Returns the output of all; one agent for each number of workers."""
        endpoint = f"127.0.0.1:{free_port()}"
        agents = [subprocess.Popen(
            [DDPRUN, f"--nnodes={len(workers)}", f"--node-rank={node}", f"--nproc-per-node={count}", "--rdzv-backend=c10d",
             f"--rdzv-endpoint={endpoint}", "--rdzv-id=hosts", "--no-python", support.MNIST, *self.flags],
            env=support.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for node, count in enumerate(workers)]
        for agent in agents:
            self.addCleanup(agent.kill)  # its guardian ends its workers
        said = [agent.communicate(timeout=support.DEADLINE) for agent in agents]
        self.assertEqual([agent.returncode for agent in agents], [0] * len(agents), said)
        return "".join(out for out, _ in said)

    def assert_same_end(self, one, other):
        for name in ("loss", "weights", "accuracy"):
            self.assertEqual(support.value_of(name, one), support.value_of(name, other), name)

    def test_one_worker_each_has_the_digits_of_one_host(self):
        self.assert_same_end(self.on_hosts(1, 1), self.on_one_host(2))
        self.assert_same_end(self.on_hosts(1, 1, 1), self.on_one_host(3))

    def test_two_workers_each_train_alike(self):
        self.assert_same_end(self.on_hosts(2, 2), self.on_hosts(2, 2))

    def test_hosts_with_unlike_numbers_of_workers_have_the_digits_of_one_host(self):
        self.assert_same_end(self.on_hosts(1, 2), self.on_one_host(3))


if __name__ == "__main__":
    unittest.main()
