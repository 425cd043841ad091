"""Training jobs: the engine's mnist and the same job with stock PyTorch, under ddprun."""

import itertools
import os
import re
import signal
import sys
import unittest

from machine import free_port
from pytorch_exit import RUNS_WITH_ABORTS, aborted
from support import ROOT, JobTest, main, torch_python, with_variables

sys.path.append(str(ROOT / "tests" / "examples"))
import digits  # noqa: E402  (found by the line above)

BIN = os.environ.get("DDPRUN_BIN", str(ROOT / "build" / "bin"))
MNIST = os.path.join(BIN, "mnist")
DDP_MNIST = ROOT / "examples" / "pytorch" / "ddp_mnist.py"
TRAINING_DEADLINE = 300  # seconds; the job itself takes some ten
EPOCHS = 8
# Two process groups one after the other, at the same port; the first attempt fails then.
OWN_STORE = """
import datetime, os, sys, time
import torch, torch.distributed as dist
rank, size, attempt = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False"
if sys.argv[1] == "stripped":
    del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
where = "tcp://" + os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
for group in (1, 2):
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
    number = torch.ones(1)
    dist.all_reduce(number)
    # A group that ends resets connections that others may still read.
    store = dist.distributed_c10d._get_default_store()
    for word in "summed", "seen":
        store.set(f"{word}{rank}", "1")
        if rank == 0 or word == "summed":
            store.wait([f"{word}{other}" for other in range(size)])
    dist.destroy_process_group()
    del store
    # The next group must not meet at the store of this one.
    over = f"{__file__}-{sys.argv[1]}-{size}-{attempt}-{group}"
    if rank == 0:
        open(over, "w").close()
    while not os.path.exists(over):
        time.sleep(0.01)
    if rank == 0:
        print(f"attempt {attempt}: {int(number)} ranks, group {group}", flush=True)
os._exit(3 if attempt == rank == 0 else 0)  # rank 0 alone, which has said everything by then
"""
DDP_MNIST_ROUND = re.compile(r"world=(\d+), (\d+) epochs done")
MNIST_ROUND = re.compile(r"mnist: world of (\d+) .*(?:resumed after epoch (\d+)|new weights)")
EPOCH = re.compile(r"epoch (\d+)/\d+ loss=")


def found(pattern, text):
    match = re.search(pattern, text)
    assert match, f"no {pattern} in: {text}"
    return match[1]


class Training(JobTest):
    def mnist(self, *args, flags=()):
        return self.start("--standalone", "--nproc-per-node=2", *flags, MNIST, *args)

    def test_mnist_learns(self):
        code, out, err = self.mnist("--epochs=5").finish(TRAINING_DEADLINE)
        self.assertEqual(code, 0, err)
        self.assertGreaterEqual(float(found(r"accuracy=([0-9.]+)$", out.strip())), 0.93)

    def test_mnist_meets_at_a_store_of_rank_0(self):
        env = with_variables(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", OMP_NUM_THREADS="1")
        digits.write_subset(self.folder, train=320, held_out=50)
        meet = f"--rdzv-endpoint=localhost:{free_port()}"
        for nodes, flags in (1, ["--standalone"]), (2, ["--nnodes=2", "--rdzv-backend=c10d", meet, "--rdzv-id=own"]):
            with self.subTest(nodes=nodes):
                jobs = [self.start(*flags, "--nproc-per-node=2", MNIST, "--epochs=1", f"--data={self.folder}", env=env)
                        for _ in range(nodes)]
                results = [job.finish(TRAINING_DEADLINE) for job in jobs]
                self.assertEqual([code for code, _, _ in results], [0] * nodes, results)

    @unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
    def test_stock_pytorch_gives_torchruns_digits(self):
        # The last batch is short, a share padded.
        digits.write_subset(self.folder, train=650, held_out=77)
        args = ["--standalone", "--nproc-per-node=2", DDP_MNIST, "--epochs=1", f"--data={self.folder}"]
        env = with_variables(PYTHON_EXEC=torch_python())
        theirs = self.trained(args, env, program=(torch_python(), "-m", "torch.distributed.run"))
        self.assertEqual(found(r"loss=(\S+)", self.trained(args, env)), found(r"loss=(\S+)", theirs))

    @unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
    def test_rank_0_serves_the_store_itself(self):
        """TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, also where the code that makes the store does not
        see what the launcher says."""
        script = self.script(OWN_STORE, "own_store.py")
        meet = f"--rdzv-endpoint=localhost:{free_port()}"
        env = with_variables(PYTHON_EXEC=torch_python(), TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", OMP_NUM_THREADS="1")
        for way, nodes, flags in (("plain", 1, ["--standalone"]), ("stripped", 1, ["--standalone"]),
                                  ("stripped", 2, ["--nnodes=2", "--rdzv-backend=c10d", meet, "--rdzv-id=own"])):
            with self.subTest(way, nodes=nodes, flags=flags):
                jobs = [self.start(*flags, "--nproc-per-node=2", "--max-restarts=1", script, way, env=env) for _ in range(nodes)]
                results = [job.finish(TRAINING_DEADLINE) for job in jobs]
                self.assertEqual([code for code, _, _ in results], [0] * nodes, results)
                said = sorted(line for _, out, _ in results for line in out.splitlines())
                self.assertEqual(said, [f"attempt {attempt}: {2 * nodes} ranks, group {group}" for attempt in (0, 1) for group in (1, 2)])

    def trained(self, args, env, **options):
        """Returns the output of a job that ended well. A run that PyTorch aborts at its exit, and
        no other, is said and repeated."""
        for _ in range(RUNS_WITH_ABORTS):
            code, out, err = self.start(*args, env=env, **options).finish(TRAINING_DEADLINE)
            if not aborted(code, err):
                break
            print("PyTorch aborted at its exit: once more")
        self.assertEqual(code, 0, err)
        return out


class Resized(JobTest):
    """Nodes come and go, and training goes on from the last checkpoint: 2, 3, 1 and 2 nodes."""

    def setUp(self):
        super().setUp()
        self.port, self.shown, self.lines, self.round, self.size = free_port(), self.fifo("shown"), [], None, None

    def node(self, trainer, is_host=False, **options):
        return self.start("--nnodes=1:3", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=job",
                          f"--rdzv-endpoint=127.0.0.1:{self.port}",
                          f"--rdzv-conf=is_host={int(is_host)},last_call_timeout=10,resize_wait=0,resize_interval=0,keep_alive_interval=10",
                          *trainer, f"--epochs={EPOCHS}", f"--checkpoint={self.folder / 'state.pt'}",
                          env=with_variables(PYTHON_EXEC=torch_python() or "", OMP_NUM_THREADS="1"), **options)

    def next_line(self):
        (line,) = self.fifos[self.shown].lines(1, TRAINING_DEADLINE)
        self.lines.append(line)
        return line

    def await_epoch_of(self, size):
        """Reads on until a world of this size has trained an epoch."""
        while True:
            line = self.next_line()
            if match := self.round.match(line):
                self.size = int(match[1])
            elif EPOCH.match(line) and self.size == size:
                return

    def train_on_two_three_one_and_two_nodes(self, trainer, is_round):
        """`is_round` matches the line that a round begins with: its world size, and the epochs done
        if there are any."""
        self.round = is_round
        host = self.node(trainer, is_host=True, prefix=("sh", "-c", f'exec "$@" > {self.shown}', "sh"))
        leaving = [self.node(trainer)]
        self.await_epoch_of(2)
        leaving.append(self.node(trainer))
        self.await_epoch_of(3)
        for job in leaving:
            job.process.send_signal(signal.SIGTERM)
        self.await_epoch_of(1)
        last = self.node(trainer)
        self.await_epoch_of(2)
        while not self.next_line().startswith("accuracy="):
            pass
        for job in host, last:
            code, _, err = job.finish(TRAINING_DEADLINE)
            self.assertEqual(code, 0, err)
        for job in leaving:
            job.finish()
        return self.sizes()

    def sizes(self):
        """The world sizes, after a check that no round trained an epoch again."""
        sizes, done = [], 0
        for line in self.lines:
            if match := self.round.match(line):
                self.assertGreaterEqual(int(match[2] or 0), done, f"an epoch that is trained again: {self.lines}")
                sizes.append(int(match[1]))
            elif match := EPOCH.match(line):
                done = int(match[1])
        self.assertEqual(done, EPOCHS)
        return sizes

    def test_mnist(self):
        digits.write_subset(self.folder, train=1500, held_out=100)
        trainer = ("--no-python", MNIST, f"--data={self.folder}")
        # Those who leave do so one after the other.
        self.assertIn(self.train_on_two_three_one_and_two_nodes(trainer, MNIST_ROUND), ([2, 3, 1, 2], [2, 3, 2, 1, 2]), self.lines)

    @unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
    def test_ddp_mnist(self):
        digits.write_subset(self.folder, train=1500, held_out=100)
        trainer = (DDP_MNIST, "--batch-size=128", f"--data={self.folder}")
        sizes = self.train_on_two_three_one_and_two_nodes(trainer, DDP_MNIST_ROUND)
        # PyTorch's aborts (trained()) make further rounds of one size.
        self.assertIn([size for size, _ in itertools.groupby(sizes)], ([2, 3, 1, 2], [2, 3, 2, 1, 2]), self.lines)


if __name__ == "__main__":
    main()
