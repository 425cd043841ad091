"""Checkpoints that other frameworks wrote with their own libraries. Each is opened with the right
weights. Or its error names the keys that are there and the option that selects one.

The frameworks are those of .venv-trainers (scripts/setup.sh --tests); without it all is skipped.
DDPRUN_BIN names the folder of the built programs (default build/bin).
"""

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv-trainers" / "bin" / "python"
PROGRAM = str(pathlib.Path(os.environ.get("DDPRUN_BIN", ROOT / "build" / "bin")) / "checkpoint_program")

sys.path.insert(0, str(ROOT / "tests" / "house"))
from sources import run_tests  # noqa: E402  (found by the line above)

if pathlib.Path(sys.prefix) != PYTHON.parents[1]:
    if not PYTHON.exists():
        print("skipped: needs the frameworks in .venv-trainers (scripts/setup.sh --tests)")
        sys.exit(77)
    os.execv(PYTHON, [str(PYTHON), "-B", *sys.argv])
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo"}
warnings.simplefilter("ignore")

try:
    import accelerate  # noqa: E402
    import lightning  # noqa: E402
    import timm.utils  # noqa: E402
    import torch  # noqa: E402
    import torch.distributed as dist  # noqa: E402
    import torch.distributed.checkpoint as dcp  # noqa: E402
    import transformers  # noqa: E402
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402
    from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict,  # noqa: E402
                                                         get_state_dict)
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard  # noqa: E402
    from torch.nn.parallel import DistributedDataParallel  # noqa: E402
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402
except ImportError as error:
    print(f"skipped: .venv-trainers lacks a framework: {error} (scripts/setup.sh --tests)")
    sys.exit(77)


def make_net(seed=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))


def make_optimizer(net):
    """With a state, as after a step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    net(torch.ones(5, 4)).square().sum().backward()
    optimizer.step()
    return optimizer


class Settings:
    """A class of a program's own, which no reader of weights knows."""

    def __init__(self):
        self.rates = {0.5: "a key that is no text"}
        self.large = 2**100


class Lit(lightning.LightningModule):
    """`net` is what is trained; with `weighted` the loss has a tensor of its own."""

    def __init__(self, weighted=False, settings=None):
        super().__init__()
        self.save_hyperparameters()
        self.net = make_net()
        self.loss = torch.nn.CrossEntropyLoss(weight=torch.ones(2) if weighted else None)

    def training_step(self, batch, _):
        return self.loss(self.net(batch), torch.zeros(len(batch), dtype=torch.long))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


class State(dcp.stateful.Stateful):
    """The form of PyTorch's recipe for distributed checkpoints."""

    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer

    def state_dict(self):
        net, optimizer = get_state_dict(self.net, self.optimizer)
        return {"model": net, "optim": optimizer}

    def load_state_dict(self, _):
        pass


class Frameworks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.all = tempfile.TemporaryDirectory()
        dist.init_process_group("gloo", init_method=f"file://{cls.all.name}/meeting", rank=0, world_size=1)

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()
        cls.all.cleanup()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / "file.pt"

    def run_program(self, net, key="", file=None):
        """Loads the file into a module with the names and sizes of `net`."""
        lines, known = [], {}
        parameters = dict(net.named_parameters(remove_duplicate=False))
        for name, tensor in net.state_dict().items():
            sizes = " ".join(map(str, tensor.shape))
            other = known.setdefault(tensor.data_ptr(), name)
            kind = "parameter" if name in parameters else "buffer"
            lines.append(f"{kind} {name} {sizes}" if other == name else f"tied {name} {other}")
        (self.folder / "plan").write_text("\n".join(lines))
        command = [PROGRAM, "weights", str(file or self.file), str(self.folder / "out.pt"), str(self.folder / "plan"), key]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def opens(self, net, expected_net=None, key="", file=None, found=None, **shown):
        done = self.run_program(net, key, file)
        self.assertEqual(done.returncode, 0, done.stderr)
        loaded = torch.load(self.folder / "out.pt")["state_dict"]
        for name, tensor in (expected_net or net).state_dict().items():
            self.assertTrue(torch.equal(loaded[name], tensor.to(loaded[name].dtype)), name)
        if found is not None:
            self.assertIn(f"key={found} ", done.stdout)
        for word, value in shown.items():
            self.assertIn(f"{word}={value}", done.stdout)

    def refuses(self, net, *parts, key=""):
        done = self.run_program(net, key)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)

    # ---- PyTorch's own wrappers.

    def test_distributed_data_parallel(self):
        net = make_net()
        torch.save(DistributedDataParallel(net).state_dict(), self.file)
        self.opens(net, how="'module.' was stripped from its keys")

    def test_data_parallel_as_in_the_imagenet_example(self):
        net = make_net()
        optimizer = make_optimizer(net)
        torch.save({"epoch": 1, "arch": "resnet18", "state_dict": torch.nn.DataParallel(net).state_dict(), "best_acc1": torch.tensor(5.0),
                    "optimizer": optimizer.state_dict(), "scheduler": {}}, self.file)
        self.opens(net, optimizer="true")

    def test_a_compiled_net(self):
        net = make_net()
        torch.save({"state_dict": torch.compile(net).state_dict()}, self.file)
        self.opens(net, how="'_orig_mod.' was stripped from its keys")

    def test_a_compiled_net_under_distributed_data_parallel(self):
        net = make_net()
        torch.save({"model": DistributedDataParallel(torch.compile(net)).state_dict()}, self.file)
        self.opens(net, how="'module._orig_mod.' was stripped from its keys")

    def test_distributed_data_parallel_that_is_compiled(self):
        net = make_net()
        torch.save({"model": torch.compile(DistributedDataParallel(net)).state_dict()}, self.file)
        self.opens(net, how="'_orig_mod.module.' was stripped from its keys")

    def test_compiled_parts_of_a_net(self):
        net, whole = make_net(), make_net()
        whole[0], whole[2] = torch.compile(whole[0]), torch.compile(whole[2])
        torch.save(DistributedDataParallel(whole).state_dict(), self.file)
        self.opens(net, how="'module.' was stripped from its keys, '_orig_mod.' was taken out of its keys")

    def test_an_averaged_model(self):
        net = make_net()
        torch.save(AveragedModel(net, use_buffers=True).state_dict(), self.file)
        self.opens(net, how="'module.' was stripped")

    def test_a_compiled_averaged_model(self):
        net = make_net()
        torch.save({"state_dict": torch.compile(AveragedModel(net)).state_dict()}, self.file)
        self.opens(net, how="'_orig_mod.module.' was stripped")

    def test_a_model_and_its_average_are_never_mistaken(self):
        net, averaged = make_net(), AveragedModel(make_net(4), multi_avg_fn=get_ema_multi_avg_fn(0.9))
        torch.save({"model": net.state_dict(), "model_ema": averaged.state_dict(), "args": argparse.Namespace(lr=0.1)}, self.file)
        self.opens(net, others="model_ema", how="weights of 'model', not of 'model_ema'")
        self.opens(net, averaged.module, key="model_ema")

    def test_the_tutorials_checkpoint(self):
        net = make_net()
        optimizer = make_optimizer(net)
        torch.save({"epoch": 3, "model_state_dict": net.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "loss": 0.4},
                   self.file)
        self.opens(net, optimizer="false")

    def test_torchvisions_reference_scripts(self):
        net = make_net()
        optimizer = make_optimizer(net)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [100])
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "lr_scheduler": scheduler.state_dict(), "epoch": 2,
                    "args": argparse.Namespace(rates=(0.1, 0.2), settings=Settings()), "scaler": torch.amp.GradScaler("cpu").state_dict()},
                   self.file)
        self.opens(net, optimizer="true")

    # ---- Shards that were put together.

    def test_fsdp_full_state_dict(self):
        net = make_net()
        sharded = fully_shard(make_net(), mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        torch.save(get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True)), self.file)
        self.opens(net)

    def test_shards_that_were_not_put_together_are_refused(self):
        sharded = fully_shard(make_net(), mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        torch.save({"state_dict": sharded.state_dict()}, self.file)
        self.refuses(make_net(), "the state_dict's '0.weight'", "is not read")

    def test_fsdp_names(self):
        net = make_net()
        whole = torch.nn.Sequential(*(FullyShardedDataParallel(part, use_orig_params=True, device_id=torch.device("cpu"))
                                      for part in make_net()))
        tensors = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}
        self.assertIn("0._fsdp_wrapped_module.weight", tensors)
        torch.save({name: tensor.detach().clone().view(net.state_dict()[name.replace("_fsdp_wrapped_module.", "")].shape)
                    for name, tensor in tensors.items()}, self.file)
        self.opens(net, how="'_fsdp_wrapped_module.' was taken out")

    def exported(self, state):
        """A distributed checkpoint of this state, as one file."""
        dcp.save(state, checkpoint_id=str(self.folder / "dcp"))
        dcp_to_torch_save(str(self.folder / "dcp"), str(self.file))

    def test_distributed_checkpoint_of_a_model(self):
        net = make_net()
        self.exported({"model": net.state_dict(), "step": 3})
        self.opens(net, found="model")

    def test_distributed_checkpoint_of_an_app(self):
        net = make_net()
        self.exported({"app": State(net, make_optimizer(net))})
        self.opens(net, found="app.model", optimizer="false")

    def test_distributed_checkpoint_with_an_optimizer(self):
        net = make_net()
        model, optimizer = get_state_dict(net, make_optimizer(net))
        self.exported({"model": model, "optimizer": optimizer})
        self.opens(net, found="model", optimizer="false")

    # ---- Other people's libraries.

    def lightning_file(self, module):
        trainer = lightning.Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                    enable_model_summary=False, default_root_dir=self.folder)
        with contextlib.redirect_stderr(None):
            trainer.fit(module, torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4))
        trainer.save_checkpoint(self.file)

    def test_lightning(self):
        module = Lit(settings=Settings())
        self.lightning_file(module)
        self.assertIn("pytorch-lightning_version", torch.load(self.file, weights_only=False))
        self.opens(module.net, how="'net.' was stripped from its keys")

    def test_lightning_module_with_tensors_of_its_own(self):
        module = Lit(weighted=True)
        self.lightning_file(module)
        self.refuses(module.net, "'loss.weight'", "'state_dict.net'", "weights_key (--weights-key) selects one")
        self.opens(module.net, key="state_dict.net")

    def test_lightning_fabric(self):
        net = make_net()
        optimizer = make_optimizer(net)
        fabric = lightning.Fabric(accelerator="cpu", devices=1)
        wrapped, wrapped_optimizer = fabric.setup(torch.compile(net), optimizer)
        fabric.save(self.file, {"model": wrapped, "optimizer": wrapped_optimizer, "iteration": 1})
        self.opens(net, optimizer="true")

    def test_timm(self):
        net = make_net()
        ema = timm.utils.ModelEmaV3(make_net(4))
        saver = timm.utils.CheckpointSaver(net, make_optimizer(net), args=argparse.Namespace(model="resnet18", epochs=3), model_ema=ema,
                                           checkpoint_dir=str(self.folder), recovery_dir=str(self.folder))
        saver.save_checkpoint(epoch=0, metric=1.0)
        file = self.folder / "last.pth.tar"
        self.opens(net, file=file, others="state_dict_ema", optimizer="true")
        self.opens(net, ema.module, key="state_dict_ema", file=file)

    def test_transformers_with_tied_weights(self):
        config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=4, n_layer=1, n_head=1)
        torch.manual_seed(3)
        net = transformers.GPT2LMHeadModel(config)
        self.assertEqual(net.lm_head.weight.data_ptr(), net.transformer.wte.weight.data_ptr())
        # save_pretrained() leaves out all names of a tensor but one.
        state = {name: tensor for name, tensor in net.state_dict().items() if name != "lm_head.weight"}
        torch.save(state, self.file)
        self.opens(net)

    def test_transformers_with_both_names(self):
        config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=4, n_layer=1, n_head=1)
        net = transformers.GPT2LMHeadModel(config)
        torch.save(net.state_dict(), self.file)
        self.opens(net)

    def test_accelerate_model(self):
        net = make_net()
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.save_model(accelerator.prepare(net), str(self.folder / "model"), safe_serialization=False)
        self.opens(net, file=self.folder / "model" / "pytorch_model.bin")

    def test_accelerate_state(self):
        net = make_net()
        accelerator = accelerate.Accelerator(cpu=True)
        prepared = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        accelerator.save_state(str(self.folder / "state"), safe_serialization=False)
        self.assertEqual(len(prepared), 2)
        self.opens(net, file=self.folder / "state" / "pytorch_model.bin")

    def test_deepspeeds_consolidated_forms(self):
        net = make_net()
        torch.save({"module": net.state_dict(), "ds_config": {"zero_optimization": {"stage": 0}}, "ds_version": "0.1",
                    "client_state": Settings()}, self.file)
        self.opens(net, found="module")

    # ---- Names that must not be guessed.

    def test_two_nets_of_one_shape_are_refused_with_their_keys(self):
        one, other = make_net(3), make_net(4)
        torch.save({"student": one.state_dict(), "teacher": other.state_dict()}, self.file)
        self.refuses(one, "'student', 'teacher'", "weights_key (--weights-key) selects one")
        self.opens(one, other, key="teacher")
        self.refuses(one, "weights_key (--weights-key) tutor: no weights there", "'student', 'teacher'", key="tutor")

    def test_an_average_never_stands_in_for_a_model_that_does_not_fit(self):
        wide = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
        torch.save({"model": wide.state_dict(), "model_ema": make_net().state_dict()}, self.file)
        self.refuses(make_net(), "'0.weight' has the shape [3, 5], the module's has [3, 4]", "'model_ema'")

    def test_a_generator_among_other_nets(self):
        net = make_net()
        torch.save({"generator": net.state_dict(), "discriminator": torch.nn.Linear(2, 1).state_dict()}, self.file)
        self.opens(net, found="generator")

    def test_a_pickled_model_is_named(self):
        torch.save({"model": make_net(), "epoch": 1}, self.file)
        self.refuses(make_net(), "'model' (object), 'epoch' (int)", "torch.nn.modules.container Sequential' is not read")

    def test_no_weights_at_all(self):
        torch.save({"epoch": 1, "state": {"a": 1}}, self.file)
        self.refuses(make_net(), "no state_dict among its keys: 'epoch' (int), 'state' (dict)")

    def test_objects_beside_the_weights_do_nothing(self):
        touched = self.folder / "was-here"

        class Evil:
            def __reduce__(self):
                return os.system, (f"touch {touched}",)

        net = make_net()
        torch.save({"state_dict": net.state_dict(), "args": Evil()}, self.file)
        self.opens(net)
        self.assertFalse(touched.exists())


if __name__ == "__main__":
    run_tests()
