"""A node is drained in the midst of training. It exits 0, and the other two go on from the
checkpoint."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

import digits
import support

sys.path.insert(0, str(support.ROOT / "tests" / "jobs"))
import machine  # noqa: E402  (found by the line above)

DDPRUN = os.environ.get("DDPRUN", str(support.ROOT / "build" / "bin" / "ddprun"))
DDPCTL = os.environ.get("DDPCTL", str(pathlib.Path(DDPRUN).with_name("ddpctl")))


class MnistDrain(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        digits.write_subset(folder.name, train=2000, held_out=100)
        self.endpoint = f"127.0.0.1:{machine.free_port()}"

    def node(self, rank):
        command = [DDPRUN, "--nnodes=2:3", f"--node-rank={rank}", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=drain",
                   f"--rdzv-endpoint={self.endpoint}", f"--rdzv-conf=is_host={int(rank == 0)},last_call_timeout=600,keep_alive_interval=10",
                   "--no-python", support.MNIST, "--epochs=4", "--data", self.folder, "--checkpoint", self.folder / "mnist.pt"]
        node = subprocess.Popen([str(word) for word in command], env=support.environment(), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)
        self.addCleanup(node.kill)  # its guardian ends its workers
        return node

    def ctl(self, *words):
        return subprocess.run([DDPCTL, f"--endpoint={self.endpoint}", *words], capture_output=True, text=True,
                              env=support.environment(), timeout=support.DEADLINE)

    def test_the_others_go_on_and_no_restart_is_spent(self):
        nodes = [self.node(rank) for rank in range(3)]
        watchdog = threading.Timer(2 * support.DEADLINE, nodes[0].kill)
        watchdog.start()
        self.addCleanup(watchdog.cancel)
        lines, shown = [], None
        for line in nodes[0].stdout:
            lines.append(line)
            if shown is None and line.startswith("epoch 2/4 step"):
                done = self.ctl("drain", "drain", "2", "--deadline=60")
                self.assertEqual(done.returncode, 0, done.stderr)
                shown = ()
            if shown == () and "world of 2" in line:
                shown = json.loads(self.ctl("status", "drain", "--json").stdout)["jobs"][0]
        said = "".join(lines)
        ends = [node.communicate(timeout=support.DEADLINE) for node in nodes]
        self.assertEqual([node.returncode for node in nodes], [0, 0, 0], (said, ends))
        self.assertIn("world of 3", said)
        self.assertIn("world of 2", said)
        self.assertIn("resumed after epoch 1", said)
        self.assertIn("epoch 4/4", said)
        self.assertEqual((shown["restarts"], shown["round"]), (0, 2))
        self.assertIn("an operator drained this node", ends[2][1])


if __name__ == "__main__":
    unittest.main()
