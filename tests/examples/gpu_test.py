"""Each example that trains, on one GPU, with a set that is made for the test. Skipped where there
is no GPU.

The losses are those of the CPU but for rounding, where a net has no dropout and few layers.
"""

import os
import re
import unittest

import support
from examples_test import BIN, DDPRUN, END, TWINS, Example

DEVICE = "/dev/nvidia0"
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES", "0")


class OnGpu(Example):
    def setUp(self):
        if not os.path.exists(DEVICE):
            self.skipTest(f"no GPU here: {DEVICE} is missing")
        super().setUp()

    def on_gpu(self, name, *flags, device="cuda", workers=1):
        done = support.run(DDPRUN, "--standalone", f"--nproc-per-node={workers}", "--no-python", BIN / name, *flags, f"--device={device}",
                           CUDA_VISIBLE_DEVICES=VISIBLE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def check_learns(self, name, *flags, learnt):
        output = self.on_gpu(name, *flags)
        self.assertRegex(output, END)
        self.assertGreaterEqual(float(support.value_of("accuracy", output)), learnt, output)
        return output

    def check_as_on_cpu(self, name, *flags):
        """The loss of the first epoch within 1 %, and other weights. Those of the CPU would show
        that nothing ran on the GPU."""
        gpu, cpu = self.on_gpu(name, *flags), self.ours(1, name, *flags)
        first = [float(re.search(r"^epoch 1/\d+ loss=(\S+)$", output, re.MULTILINE)[1]) for output in (gpu, cpu)]
        self.assertAlmostEqual(first[0], first[1], delta=0.01 * first[1], msg=gpu + cpu)
        self.assertNotEqual(support.value_of("weights", gpu), support.value_of("weights", cpu))

    def test_mnist(self):
        output = self.check_learns("mnist", "--epochs=2", learnt=0.9)
        self.assertTrue(output.startswith("mnist: world of 1 (nccl), "), output)

    def test_mnist_goes_on_from_its_checkpoint(self):
        save = "--checkpoint", self.folder / "m.pt"
        self.on_gpu("mnist", "--epochs=1", *save)
        self.assertIn("resumed after epoch 1", self.on_gpu("mnist", "--epochs=2", *save, "--resume"))
        # The file is that of any device.
        self.assertIn("resumed after epoch 2", self.ours(1, "mnist", "--epochs=2", *save, "--resume"))

    def test_auto_takes_the_gpu_and_the_cpu_for_more_ranks_than_gpus(self):
        self.assertIn("world of 1 (nccl)", self.on_gpu("mnist", "--epochs=1", device="auto"))
        if "," in VISIBLE:
            self.skipTest("there are several GPUs")
        self.assertIn("world of 2 (shm)", self.on_gpu("mnist", "--epochs=1", device="auto", workers=2))

    def test_adults(self):
        data = self.make("adults", 1500, 301)
        self.check_learns("adults", *data, learnt=0.7)
        self.check_as_on_cpu("adults", *data)

    def test_imdb(self):
        data = *self.make("imdb", 400, 101), "--words=150", "--long-text=40", "--batch-size=4"
        self.check_learns("imdb", *data, learnt=0.8)
        self.check_as_on_cpu("imdb", *data)

    def test_cifar10(self):
        self.check_learns("cifar10", *self.make("cifar10", 200, 41), "--width=8", "--batch-size=10", "--epochs=8", learnt=0.2)

    def test_cifar10_in_16_bits(self):
        flags = *self.make("cifar10", 800, 240, "--classes=4"), "--width=4", "--batch-size=20", "--lr=0.005", "--epochs=5"
        self.check_learns("cifar10", *flags, "--bf16", learnt=0.9)

    def test_twins_train_there_too(self):
        python = support.python_with_torch()
        if python is None:
            self.skipTest("no Python with torch here")
        cifar10 = *self.make("cifar10", 200, 41), "--width=8", "--batch-size=10", "--epochs=1"
        for name, flags in (("ddp_mnist", ("--epochs=1",)), ("cifar10", cifar10)):
            gpu = support.run(DDPRUN, "--standalone", "--nproc-per-node=1", TWINS / f"{name}.py", *flags, "--device=cuda", PYTHON_EXEC=python,
                              CUDA_VISIBLE_DEVICES=VISIBLE)
            self.assertEqual(gpu.returncode, 0, gpu.stderr)
            first = [float(re.search(r"^epoch 1/1 loss=(\S+)$", output, re.MULTILINE)[1]) for output in (gpu.stdout, self.theirs(1, name, *flags))]
            self.assertAlmostEqual(first[0], first[1], delta=0.02 * first[1])

    def test_cifar10_goes_on_inside_an_epoch(self):
        data = *self.make("cifar10", 120, 20), "--width=8", "--batch-size=10", "--epochs=1", "--checkpoint", self.folder / "c.pt"
        self.assertEqual(self.on_gpu("cifar10", *data, "--steps=3"), "")
        self.assertRegex(self.on_gpu("cifar10", *data), r"^epoch 1/1 loss=\S+\n" + END)

    def test_image_folder(self):
        self.check_learns("image_folder", *self.make("imagenette", 80, 21), "--width=8", "--side=32", "--batch-size=8", "--epochs=4", learnt=0.3)

    def test_zero(self):
        for flags in ((), ("--zero",)):
            output = self.on_gpu("zero", *flags)
            self.assertGreaterEqual(float(support.value_of("accuracy", output)), 0.5, output)
            self.check_as_on_cpu("zero", *flags)

    def test_uneven(self):
        self.check_as_on_cpu("uneven")


if __name__ == "__main__":
    support.run_tests()
