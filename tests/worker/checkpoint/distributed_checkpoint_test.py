#!/usr/bin/env python3
"""Distributed checkpoints in both directions. torch.distributed.checkpoint loads our folders, and
we load its own, each on another number of ranks. Bits are compared.

DDPRUN and DDPRUN_BIN name the program and the folder of the built programs (default build/bin).
"""

import multiprocessing
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv" / "bin" / "python"
BIN = pathlib.Path(os.environ.get("DDPRUN_BIN", ROOT / "build" / "bin"))
PROGRAM = str(BIN / "checkpoint_program")
DDPRUN = os.environ.get("DDPRUN", str(BIN / "ddprun"))

sys.path.insert(0, str(ROOT / "tests" / "house"))
from sources import run_tests  # noqa: E402  (found by the line above)

# If this Python has no torch, the project's own runs the file again.
try:
    import torch
except ImportError:
    if PYTHON.exists() and pathlib.Path(sys.executable) != PYTHON:
        os.execv(PYTHON, [str(PYTHON), "-B", *sys.argv])
    print("skipped: no Python with torch here")
    sys.exit(77)

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
DEADLINE_S = 120


def make_net():
    """That of the program, with other numbers."""
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))


def make_optimizer(net):
    return torch.optim.Adam(net.parameters(), lr=0.01, amsgrad=True)


def train(net, optimizer, first, steps):
    for step in range(first, first + steps):
        batch = (torch.arange(35, dtype=torch.float64).view(5, 7) * 0.1 + step).sin().float()
        optimizer.zero_grad()
        net(batch).pow(2).sum().backward()
        optimizer.step()


def flat(state, path=""):
    """Tensors and values by their paths."""
    if isinstance(state, dict):
        return {key: value for name, item in state.items() for key, value in flat(item, f"{path}/{name}").items()}
    if isinstance(state, list) and state and isinstance(state[0], dict):
        return {key: value for i, item in enumerate(state) for key, value in flat(item, f"{path}/{i}").items()}
    return {path: state}


def sharded_rank(rank, ranks, folder, action, result):
    """One rank of fully_shard: it trains and saves, or it loads. Rank 0 writes the whole state."""
    dist.init_process_group("gloo", init_method=f"file://{result}.store", rank=rank, world_size=ranks)
    net = make_net()
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = make_optimizer(net)
    train(net, optimizer, 0, 2)
    model, optim = get_state_dict(net, optimizer)
    state = {"model": model, "optim": optim}
    if action == "save":
        dcp.save(state, checkpoint_id=folder)
    else:
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    whole = get_state_dict(net, optimizer, options=FULL)
    if rank == 0:
        torch.save({"model": whole[0], "optim": whole[1]}, result)
    dist.destroy_process_group()


class Distributed(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)
        torch.set_num_threads(1)

    def path(self, name):
        return str(self.folder / name)

    def ours(self, kind, source, target, steps=0, ranks=1, code=0):
        """Returns the stdout of the program, or its stderr where it fails."""
        return self.program("distributed", kind, source, target, str(steps), ranks=ranks, code=code)

    def program(self, *words, ranks=1, code=0):
        launch = [DDPRUN, "--standalone", f"--nproc-per-node={ranks}", "--quiet", "--no-python"] if ranks > 1 else []
        done = subprocess.run([*launch, PROGRAM, *words], capture_output=True, text=True, timeout=DEADLINE_S,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr if code else done.stdout

    def theirs(self, ranks, folder, action):
        """The whole state of fully_shard's ranks, which are forked: they import nothing."""
        result = self.path(f"{action}{ranks}.pt")
        fork = multiprocessing.get_context("fork")
        workers = [fork.Process(target=sharded_rank, args=(rank, ranks, folder, action, result)) for rank in range(ranks)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(DEADLINE_S)
            self.assertEqual(worker.exitcode, 0)
        return torch.load(result)

    def loaded(self, folder):
        """The whole state by one process without shards."""
        net = make_net()
        optimizer = make_optimizer(net)
        train(net, optimizer, 0, 1)
        model, optim = get_state_dict(net, optimizer)
        state = {"model": model, "optim": optim}
        dcp.load(state, checkpoint_id=folder, no_dist=True)
        return state

    def assert_same(self, one, other):
        one, other = flat(one), flat(other)
        self.assertEqual(set(one), set(other))
        for key, value in one.items():
            if isinstance(value, torch.Tensor):
                self.assertTrue(torch.equal(value, other[key]), key)
            else:
                self.assertEqual(value, other[key], key)

    def test_ours_on_other_numbers_of_ranks(self):
        states = {}
        for kind, ranks, others in (("sharded", 4, (2, 3)), ("zero", 3, (2,)), ("plain", 2, (3,))):
            folder = self.path(kind)
            self.ours(kind, "-", folder, 3, ranks=ranks)
            states[kind] = self.loaded(folder)
            self.assertEqual(sorted(os.listdir(folder)), sorted([".metadata", *(f"__{rank}_0.distcp" for rank in range(ranks))]))
            for other in others:
                again = f"{folder}{other}"
                said = self.ours(kind, folder, again, ranks=other)
                self.assertEqual(said, f"epoch=3 arch=tiny extra=1 optimizer=true rng=false ranks={ranks}\n")
                self.assert_same(self.loaded(again), states[kind])
        self.assert_same(states["plain"], states["zero"])
        self.assert_same(states["plain"], states["sharded"])
        # Each kind loads each other one's.
        for kind, source, ranks in ("sharded", "zero", 2), ("plain", "sharded", 1), ("zero", "sharded", 2):
            self.ours(kind, self.path(source), self.path("mixed"), ranks=ranks)
            self.assert_same(self.loaded(self.path("mixed")), states["plain"])
        for ranks in 2, 3:
            self.assert_same(self.theirs(ranks, self.path("sharded"), "load"), states["sharded"])
        # The numbers are those of the training, and none is elsewhere.
        self.ours("plain", self.path("plain"), self.path("on"), 2)
        net = make_net()
        optimizer = make_optimizer(net)
        train(net, optimizer, 0, 1)
        set_state_dict(net, optimizer, model_state_dict=states["plain"]["model"], optim_state_dict=states["plain"]["optim"])
        train(net, optimizer, 3, 2)
        for key, value in self.loaded(self.path("on"))["model"].items():
            torch.testing.assert_close(value, net.state_dict()[key], rtol=1e-5, atol=1e-6)

    def test_theirs_on_other_numbers_of_ranks(self):
        expected = self.theirs(4, self.path("theirs"), "save")
        for kind, ranks in ("sharded", 2), ("sharded", 3), ("zero", 2), ("plain", 3):
            with self.subTest(kind=kind, ranks=ranks):
                again = self.path(f"{kind}{ranks}")
                said = self.ours(kind, self.path("theirs"), again, ranks=ranks)
                self.assertEqual(said, "epoch=0 arch= extra=0 optimizer=true rng=false ranks=0\n")
                self.assert_same(self.loaded(again), expected)

    def assert_refused(self, folder, file, *parts, kind="plain"):
        text = self.ours(kind, folder, "-", code=1)
        self.assertEqual(len(text.splitlines()), 1, text)
        for part in (f"load checkpoint {pathlib.Path(folder, file)}: ", *parts):
            self.assertIn(part, text)

    def test_damaged_missing_and_foreign_shards_are_named(self):
        good, other = self.path("good"), self.path("other")
        self.ours("plain", "-", good, 1, ranks=2)
        self.ours("plain", "-", other, 1, ranks=2)
        shard = "__1_0.distcp"

        def broken(name, change):
            folder = self.path(name)
            shutil.copytree(good, folder)
            change(pathlib.Path(folder))
            return folder

        def flip(file):
            data = bytearray(file.read_bytes())
            # Some byte of the first tensor.
            data[data.find(b"PK\x07\x08", data.find(b"archive/data/0")) - 2] ^= 1
            file.write_bytes(data)

        self.assert_refused(broken("missing", lambda folder: (folder / shard).unlink()), shard, "No such file or directory")
        self.assert_refused(broken("short", lambda folder: os.truncate(folder / shard, 700)), shard, "cut short")
        self.assert_refused(broken("flipped", lambda folder: flip(folder / shard)), shard, "CRC")
        self.assert_refused(broken("foreign", lambda folder: shutil.copy(pathlib.Path(other, shard), folder)), shard, "of another save")
        self.assert_refused(broken("bare", lambda folder: (folder / ".metadata").unlink()), ".metadata", "No such file or directory")
        self.assert_refused(broken("cut", lambda folder: os.truncate(folder / ".metadata", 200)), ".metadata", "byte ")

        class Evil:
            def __reduce__(self):
                return os.system, (f"touch {evil}",)

        evil = pathlib.Path(self.path("was-here"))
        self.assert_refused(broken("evil", lambda folder: (folder / ".metadata").write_bytes(pickle.dumps(Evil()))), ".metadata",
                            "the global 'posix system' is not read: nothing in a checkpoint is executed")
        self.assertFalse(evil.exists())

    def test_state_that_some_parameters_of_a_unit_lack_is_named(self):
        folder = self.path("lacking")
        self.ours("sharded", "-", folder, 1)
        file = pathlib.Path(folder, ".metadata")
        metadata = pickle.loads(file.read_bytes())
        # The first parameter of its unit has nothing then.
        for name in "step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq":
            del metadata.state_dict_metadata[f"optim.state.0.weight.{name}"]
        file.write_bytes(pickle.dumps(metadata))
        self.assert_refused(folder, "", "it has no tensor 'optim.state.0.weight.", kind="sharded")

    def test_a_folder_with_other_files_is_left_alone(self):
        theirs = self.folder / "home"
        theirs.mkdir()
        (theirs / "thesis.tex").write_text("years")
        text = self.ours("plain", "-", str(theirs), code=1)
        self.assertRegex(text, rf"save checkpoint {re.escape(str(theirs))}: it has 'thesis.tex', which is no part of a checkpoint")
        self.assertEqual((theirs / "thesis.tex").read_text(), "years")

    def test_all_ranks_catch_a_failed_save_and_go_on(self):
        lines = self.program("failed-saves", str(self.folder), ranks=3).splitlines()
        self.assertEqual(len(lines), 9)
        for rank in range(3):
            file, keys, folder = (line for line in lines if line.startswith(f"rank {rank}, "))
            for line, kind in (file, "file"), (folder, "distributed"):
                self.assertIn(f"rank {rank}, {kind}: ", line)
                self.assertIn(f"save checkpoint {self.folder}/missing/{kind}", line)
                self.assertIn("No such file or directory", line)
            self.assertIn(f"rank {rank}, distributed: save checkpoint {self.folder}/equal keys: ", keys)
            self.assertIn("two values have the key 'extra.a.b', since a dot joins the keys of dicts", keys)
        self.assertEqual(sorted(os.listdir(self.folder)), ["distributed", "file"])
        self.assertIn("model.0.weight", dcp.FileSystemReader(self.path("distributed")).read_metadata().state_dict_metadata)
        self.assertEqual(torch.load(self.path("file"))["epoch"], 7)

    def test_tied_and_empty_parameters_are_sharded(self):
        folder = self.path("tied")
        self.program("tied", folder, ranks=4)
        items = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        self.assertLessEqual({"model.a", "model.b", "model.large", "model.nothing", "optim.state.a.exp_avg", "optim.state.nothing.exp_avg"}, set(items))
        self.assertEqual(items["model.nothing"].size, torch.Size([0, 5]))
        self.assertNotIn("optim.state.b.exp_avg", items)


if __name__ == "__main__":
    run_tests()
