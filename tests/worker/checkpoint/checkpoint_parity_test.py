#!/usr/bin/env python3
"""Checkpoints in both directions: Python's torch.load opens ours by its defaults and trains on, and
we open its torch.save.

DDPRUN_BIN names the folder of the built programs (default build/bin).
"""

import collections
import contextlib
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv" / "bin" / "python"
PROGRAM = str(pathlib.Path(os.environ.get("DDPRUN_BIN", ROOT / "build" / "bin")) / "checkpoint_program")

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

STORAGES = {torch.float32: "FloatStorage", torch.float64: "DoubleStorage", torch.float16: "HalfStorage", torch.bfloat16: "BFloat16Storage",
            torch.int64: "LongStorage", torch.int32: "IntStorage", torch.int16: "ShortStorage", torch.int8: "CharStorage",
            torch.uint8: "ByteStorage", torch.bool: "BoolStorage", torch.complex64: "ComplexFloatStorage",
            torch.complex128: "ComplexDoubleStorage"}
KINDS = ("sgd", "adam", "adamw")


def run(*words, code=0):
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def make_net(outputs=2):
    """No bias before the norm: its gradient is 0 but for rounding, of which Adam makes whole
    steps."""
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, outputs))


def make_optimizer(kind, parameters):
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    return torch.optim.Adam(parameters, lr=0.01, amsgrad=True) if kind == "adam" else torch.optim.AdamW(parameters, lr=0.01)


def train(net, optimizer, first, steps):
    for step in range(first, first + steps):
        batch = (torch.arange(20, dtype=torch.float64).view(5, 4) * 0.1 + step).sin().float()
        optimizer.zero_grad()
        net(batch).pow(2).sum().backward()
        optimizer.step()


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def shown(value, path=""):
    """The lines of `checkpoint_program show`."""
    if isinstance(value, dict):
        return [line for key, item in value.items() for line in shown(item, f"{path}/{key}")]
    if isinstance(value, (list, tuple)):
        name = "list" if isinstance(value, list) else "tuple"
        return [f"{path} {name} {len(value)}", *(line for i, item in enumerate(value) for line in shown(item, f"{path}/{i}"))]
    if isinstance(value, torch.Tensor):
        data = value.detach().contiguous()
        data = data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
        return [f"{path} tensor {STORAGES[value.dtype]} [{', '.join(map(str, value.shape))}] {fnv(data)}"]
    if value is None:
        return [f"{path} None"]
    if isinstance(value, float):
        return [f"{path} float {value:g}"]
    return [f"{path} {type(value).__name__} {value}"]


class Checkpoints(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        torch.set_num_threads(1)

    def path(self, name):
        return self.folder / name

    def assert_near(self, ours, theirs):
        self.assertEqual(list(ours), list(theirs))
        for key, value in ours.items():
            torch.testing.assert_close(value, theirs[key], rtol=1e-5, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")


class PythonOpensOurs(Checkpoints):
    def test_by_default_and_trains_on(self):
        for kind in KINDS:
            with self.subTest(kind):
                run("train", "-", self.path("a.pt"), kind, 3)
                run("train", self.path("a.pt"), self.path("b.pt"), kind, 3)
                file = torch.load(self.path("a.pt"))
                self.assertEqual(list(file)[:5], ["epoch", "arch", "state_dict", "best_prec1", "optimizer"])
                self.assertIsInstance(file["state_dict"], collections.OrderedDict)
                self.assertEqual((file["epoch"], file["arch"], file["world_size"]), (3, "tiny", 1))
                net = make_net()
                net.load_state_dict(file["state_dict"])
                optimizer = make_optimizer(kind, net.parameters())
                fresh = optimizer.state_dict()["param_groups"][0]
                self.assertEqual(set(file["optimizer"]["param_groups"][0]), set(fresh))
                optimizer.load_state_dict(file["optimizer"])
                train(net, optimizer, 3, 3)
                self.assert_near(torch.load(self.path("b.pt"))["state_dict"], net.state_dict())

    def test_into_a_ddp_model(self):
        run("train", "-", self.path("a.pt"), "adam", 3)
        run("train", self.path("a.pt"), self.path("b.pt"), "adam", 2)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        net = torch.nn.parallel.DistributedDataParallel(make_net())
        file = torch.load(self.path("a.pt"))
        net.module.load_state_dict(file["state_dict"])
        optimizer = make_optimizer("adam", net.parameters())
        optimizer.load_state_dict(file["optimizer"])
        train(net, optimizer, 3, 2)
        self.assert_near(torch.load(self.path("b.pt"))["state_dict"], net.module.state_dict())
        # And back, with DDP's keys.
        torch.save({"epoch": 5, "state_dict": net.state_dict(), "optimizer": optimizer.state_dict()}, self.path("ddp.pt"))
        self.assertIn("prefix='module.' was stripped from its keys", run("train", self.path("ddp.pt"), self.path("c.pt"), "adam", 1))
        train(net, optimizer, 5, 1)
        self.assert_near(torch.load(self.path("c.pt"))["state_dict"], net.module.state_dict())

    def test_random_numbers_and_mmap(self):
        run("train", "-", self.path("a.pt"), "sgd", 1)
        file = torch.load(self.path("a.pt"), mmap=True)
        torch.set_rng_state(file["rng"][0])
        drawn = torch.rand(3)
        make_net()  # seeds, and draws what the program has drawn
        self.assertTrue(torch.equal(drawn, torch.rand(3)))

    def test_the_best_one_has_a_second_name(self):
        run("train", "-", self.path("run.pth.tar"), "sgd", 1)
        run("train", "-", self.path("other.pth.tar"), "sgd", 2)
        self.assertEqual(torch.load(self.path("model_best.pth.tar"))["epoch"], 2)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["model_best.pth.tar", "other.pth.tar", "run.pth.tar"])


class WeOpenPythons(Checkpoints):
    def test_and_train_on(self):
        for kind in KINDS:
            with self.subTest(kind):
                net = make_net()
                optimizer = make_optimizer(kind, net.parameters())
                # Puts initial_lr into the groups.
                scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [100])
                train(net, optimizer, 0, 4)
                torch.save({"epoch": 4, "arch": "py", "state_dict": net.state_dict(), "best_acc1": torch.tensor(71.5),
                            "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, self.path("py.pt"))
                self.assertEqual(run("train", self.path("py.pt"), self.path("ours.pt"), kind, 3),
                                 "epoch=4 arch=py best=71.5 optimizer=true rng=false prefix=\n")
                train(net, optimizer, 4, 3)
                self.assert_near(torch.load(self.path("ours.pt"))["state_dict"], net.state_dict())

    def test_a_state_dict_alone(self):
        torch.save(make_net().state_dict(), self.path("py.pt"))
        self.assertIn("optimizer=false", run("train", self.path("py.pt"), self.path("ours.pt"), "sgd", 0))
        self.assert_near(torch.load(self.path("ours.pt"))["state_dict"], make_net().state_dict())

    def test_every_value(self):
        base = torch.arange(24, dtype=torch.float32)
        parameter = torch.nn.Parameter(torch.ones(2, 2))
        value = {"tensors": [torch.arange(5).to(dtype) for dtype in STORAGES], "transposed": base.view(4, 6).t(), "step": base[1::3],
                 "shared": (base[2:9], base[5:]), "empty": torch.zeros(0, 3), "scalar": torch.tensor(3.5), "expanded": torch.ones(1).expand(7),
                 "channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), "parameter": parameter,
                 "none": None, "numbers": [True, False, -1, 2**62, 1.5, -0.25], "text": "ü", "size": base.view(2, 12).shape,
                 "nested": {"a": {"b": [collections.OrderedDict(x=1), {2: (3,)}]}}, "counter": collections.Counter([1, 1, 2])}
        torch.save(value, self.path("py.pt"))
        expected = shown(value)
        self.assertEqual(run("show", self.path("py.pt")).splitlines(), expected)
        run("copy", self.path("py.pt"), self.path("ours.pt"))
        copied = torch.load(self.path("ours.pt"))
        self.assertEqual(shown(copied), expected)
        self.assertEqual(copied["shared"][0].untyped_storage().data_ptr(), copied["transposed"].untyped_storage().data_ptr())
        self.assertEqual(copied["transposed"].stride(), value["transposed"].stride())

    def assert_refused(self, path, *parts):
        text = run("show", path, code=1)
        self.assertEqual(len(text.splitlines()), 1, text)
        for part in (f"load checkpoint {path}: ", *parts):
            self.assertIn(part, text)

    def test_what_is_not_a_checkpoint_is_refused(self):
        class Evil:
            def __reduce__(self):
                return os.system, (f"touch {self.path}",)

        evil = Evil()
        evil.path = self.path("was-here")
        torch.save({"x": evil}, self.path("evil.pt"))
        self.assert_refused(self.path("evil.pt"), "the global 'posix system' is not read: nothing in a checkpoint is executed")
        self.assertFalse(evil.path.exists())
        torch.save(make_net(), self.path("module.pt"))
        self.assert_refused(self.path("module.pt"), "the global 'torch.nn.modules.container Sequential' is not read")
        torch.save({"x": 1}, self.path("old.pt"), _use_new_zipfile_serialization=False)
        self.assert_refused(self.path("old.pt"), "torch.save's format of before 2020")
        torch.save({"x": 1}, self.path("four.pt"), pickle_protocol=4)
        self.assert_refused(self.path("four.pt"), "protocol 4 of pickle, only 2 is read")
        torch.save({"x": 2**70}, self.path("int.pt"))
        self.assert_refused(self.path("int.pt"), "an int of 9 bytes, at most 8 are read")
        self.assert_refused(self.folder, "it is no regular file")
        self.assert_refused(self.path("nothing.pt"), "No such file or directory")

    def weights_of(self, file, net, key=""):
        """The state_dict of a module with the names of `net` that has loaded the file."""
        torch.save(file, self.path("shape.pt"))
        parameters = dict(net.named_parameters())
        self.path("plan").write_text("\n".join(
            f"{'parameter' if name in parameters else 'buffer'} {name} {' '.join(map(str, tensor.shape))}"
            for name, tensor in net.state_dict().items()))
        run("weights", self.path("shape.pt"), self.path("out.pt"), self.path("plan"), key)
        return torch.load(self.path("out.pt"))["state_dict"]

    def test_shapes_of_other_programs(self):
        net, other = make_net(), make_net()
        with torch.no_grad():
            for tensor in other.parameters():
                tensor.add_(1)
        state, average, optimizer = net.state_dict(), other.state_dict(), make_optimizer("adam", net.parameters()).state_dict()

        def below(start, tensors=state):
            return {start + name: tensor for name, tensor in tensors.items()}

        halves = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
        twins = below("student.") | below("teacher.", average)
        for file, key, expected in (
                (below("model.module."), "", state),
                ({"state_dict": below("module.net.")}, "", state),
                ({"state_dict": below("_orig_mod.module.net._orig_mod.")}, "", state),
                ({"checkpoint": {"model": state, "optimizer": optimizer}, "epoch": 3}, "", state),
                ({"state_dict": {"state_dict": state}}, "", state),
                ({"net": state, "opt": optimizer, "lr": torch.tensor(0.1)}, "", state),
                ({"state_dict": state, "ema_state_dict": average}, "", state),
                ({"params": state, "params_ema": average}, "", state),
                ({"model": state, "ema": {"shadow": average, "decay": 0.9}}, "", state),
                ({"model": state, "ema": {"shadow": average, "decay": 0.9}}, "ema.shadow", average),
                ({"state_dict": twins}, "state_dict.student", state),
                ({"netG": state, "netD": average}, "netD", average),
                ({"module": below("module."), "optimizer": None}, "", state),
                ({"meta": {"epoch": 1}, "state_dict": state, "optimizer": {"a": optimizer, "b": optimizer}}, "", state),
                ({"model": state, "log": collections.defaultdict(list), "b": b"abc", "s": {1, 2}, "p": self.folder}, "", state),
                ({name: tensor for name, tensor in state.items() if "num_batches" not in name}, "", state),
                ({"model": halves}, "", halves)):
            with self.subTest(keys=list(file)[:3], key=key):
                loaded = self.weights_of(file, net, key)
                for name, tensor in expected.items():
                    self.assertTrue(torch.equal(loaded[name], tensor.to(loaded[name].dtype)), name)

    def test_another_model_or_optimizer_is_refused(self):
        net = make_net(5)
        torch.save({"state_dict": net.state_dict()}, self.path("wide.pt"))
        self.assertIn("'2.bias' has the shape [5], the module's has [2]", run("train", self.path("wide.pt"), self.path("x"), "sgd", 1, code=1))
        torch.save({"state_dict": net[:2].state_dict()}, self.path("short.pt"))
        self.assertIn("another model: 2 keys are missing: '2.bias', '2.weight'",
                      run("train", self.path("short.pt"), self.path("x"), "sgd", 1, code=1))
        run("train", "-", self.path("adam.pt"), "adam", 1)
        self.assertIn("optimizer: no key 'momentum'", run("train", self.path("adam.pt"), self.path("x"), "sgd", 1, code=1))
        self.assertIn("decoupled_weight_decay", run("train", self.path("adam.pt"), self.path("x"), "adamw", 1, code=1))
        self.assertIn("only that of SGD, Adam and AdamW", run("train", "-", self.path("x"), "rmsprop", 1, code=1))


class Kills(Checkpoints):
    def is_writing(self):
        return any(path.suffix == ".tmp" for path in self.folder.iterdir())

    def await_a_write(self):
        deadline = time.monotonic() + 30
        while not self.is_writing():
            self.assertLess(time.monotonic(), deadline, "it writes nothing")

    def test_a_kill_while_saving_leaves_a_whole_file(self):
        """The campaign: KILLS=200."""
        kills = int(os.environ.get("KILLS", "10"))
        caught = 0
        for kill in range(kills):
            with subprocess.Popen([PROGRAM, "save-for-ever", str(self.path("run.pt"))], stdout=subprocess.PIPE, text=True) as writer:
                last = [int(writer.stdout.readline()) for _ in range(1 + kill % 3)][-1]
                # Each other kill falls where a write has begun, the others anywhere.
                if kill % 2 == 0:
                    self.await_a_write()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    writer.wait(0 if kill % 2 == 0 else random.Random(kill).uniform(0, 0.05))
                writer.kill()
            # Each file is better than the one before: no number is known whose file is not there.
            epoch, best = (torch.load(self.path(name))["epoch"] for name in ("run.pt", "model_best.pt"))
            self.assertTrue(last <= epoch <= best, (last, epoch, best))
            run("show", self.path("run.pt"))
            caught += self.is_writing()
            for left in self.folder.glob("*.tmp"):
                left.unlink()
        print(f"{kills} kills, {caught} of them in the middle of a write")
        self.assertGreater(caught, 0, "no kill fell into a write: this test has shown nothing")


if __name__ == "__main__":
    run_tests()
