"""mnist as a world of one: what it prints, resuming, and what it refuses."""

import os
import pathlib
import tempfile
import unittest

import digits
import support


class MnistAlone(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        digits.write_subset(cls.folder.name, train=96, held_out=50)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.checkpoint = pathlib.Path(self.folder.name) / (self.id().rsplit(".", 1)[-1] + ".pt")

    def mnist(self, *flags, **environment):
        return support.run(support.MNIST, "--data", self.folder.name, *flags, **environment)

    def trained(self, *flags, **environment):
        done = self.mnist(*flags, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_ends_with_its_accuracy_on_the_last_line(self):
        output = self.trained("--epochs=2", "--batch-size=8")
        self.assertTrue(output.startswith("mnist: world of 1 (alone), 96 digits to train on, 50 held out, new weights\n"))
        self.assertIn("\nepoch 2/2 step 10/12 loss=", output)
        self.assertRegex(output.splitlines()[-1], r"^accuracy=[01]\.\d{4}$")
        self.assertNotIn("\r", output)

    def test_gives_the_same_weights_each_time_and_others_for_another_seed(self):
        first, second = (support.value_of("weights", self.trained("--epochs=1")) for _ in range(2))
        self.assertEqual(first, second)
        self.assertNotEqual(first, support.value_of("weights", self.trained("--epochs=1", "--seed=2")))

    def test_counts_no_padding(self):
        # 50 held-out digits: every accuracy is a multiple of 0.02.
        accuracy = float(support.value_of("accuracy", self.trained("--epochs=1")))
        self.assertAlmostEqual(accuracy * 50, round(accuracy * 50), places=6)

    def test_resumed_is_as_good_as_undisturbed(self):
        """And a checkpoint of a run that trains on while it is written is that of its epoch."""
        whole = self.trained("--epochs=3")
        self.trained("--epochs=2", "--checkpoint", self.checkpoint, "--checkpoint-async")
        rest = self.trained("--epochs=3", "--checkpoint", self.checkpoint, "--resume")
        self.assertIn("resumed after epoch 2", rest)
        self.assertNotIn("epoch 2/3", rest)
        for name in ("loss", "weights", "accuracy"):
            self.assertEqual(support.value_of(name, rest), support.value_of(name, whole), name)

    def test_a_restarted_job_resumes_unasked_from_its_own_checkpoint_only(self):
        worker = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        restarted = {**worker, "TORCHELASTIC_RESTART_COUNT": "1"}
        for ours, another in (({"DDPRUN_JOB": "a"}, {"DDPRUN_JOB": "b"}),
                              ({"TORCHELASTIC_RUN_ID": "a"}, {"TORCHELASTIC_RUN_ID": "b"}),
                              ({"TORCHELASTIC_RUN_ID": "a", "DDPRUN_JOB": "a"},
                               {"TORCHELASTIC_RUN_ID": "a", "DDPRUN_JOB": "b"})):
            with self.subTest(ours=ours, another=another):
                self.trained("--epochs=1", "--checkpoint", self.checkpoint, **worker, **ours)
                mine = self.trained("--epochs=2", "--checkpoint", self.checkpoint, **restarted, **ours)
                self.assertIn("resumed after epoch 1", mine)
                saved = self.checkpoint.read_bytes()
                other = self.trained("--epochs=1", "--checkpoint", self.checkpoint, **restarted, **another)
                self.assertIn("new weights", other)
                self.assertEqual(pathlib.Path(str(self.checkpoint) + ".old").read_bytes(), saved)

    def test_a_resized_job_resumes_as_well(self):
        """Its restart count is still 0: the job's own cookie tells."""
        worker = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RESTART_COUNT": "0"}
        self.trained("--epochs=1", "--checkpoint", self.checkpoint, **worker, DDPRUN_JOB="a")
        self.assertIn("resumed after epoch 1", self.trained("--epochs=2", "--checkpoint", self.checkpoint, **worker, DDPRUN_JOB="a"))
        self.assertIn("new weights", self.trained("--epochs=1", "--checkpoint", self.checkpoint, **worker, DDPRUN_JOB="b"))

    def test_a_restarted_job_keeps_aside_what_is_no_checkpoint(self):
        self.checkpoint.write_text("of something else")
        output = self.trained("--epochs=1", "--checkpoint", self.checkpoint, RANK="0", WORLD_SIZE="1",
                              MASTER_ADDR="127.0.0.1", MASTER_PORT="1", TORCHELASTIC_RESTART_COUNT="1")
        self.assertIn("new weights", output)
        self.assertEqual(pathlib.Path(str(self.checkpoint) + ".old").read_text(), "of something else")

    def test_a_finished_run_only_measures_again(self):
        first = self.trained("--epochs=1", "--checkpoint", self.checkpoint)
        again = self.trained("--epochs=1", "--checkpoint", self.checkpoint, "--resume")
        self.assertNotIn("epoch 1/1", again)
        for name in ("weights", "accuracy"):
            self.assertEqual(support.value_of(name, again), support.value_of(name, first), name)

    def test_a_new_run_keeps_the_old_checkpoint_aside(self):
        self.checkpoint.write_text("of another run")
        self.trained("--epochs=1", "--checkpoint", self.checkpoint)
        self.assertEqual(pathlib.Path(str(self.checkpoint) + ".old").read_text(), "of another run")
        self.assertGreater(self.checkpoint.stat().st_size, 1_000_000)

    def test_progress_rewrites_its_line_or_leaves_steps_out_when_told(self):
        self.assertIn("\r\x1b[Kepoch 1/1 step 10/12", self.trained("--epochs=1", "--batch-size=8", "--progress=always"))
        self.assertNotIn("step", self.trained("--epochs=1", "--batch-size=8", "--progress=never"))

    def test_refuses_bad_input_in_one_line(self):
        folder = self.folder.name
        self.checkpoint.write_text("no checkpoint")
        for code, flags, expected in (
                (2, ["--epochs=zero"], "mnist: --epochs: 'zero' given, expected a whole number from 1 to 100000\n"),
                (2, ["--nproc=2"], "mnist: --nproc: unknown argument; --help lists all\n"),
                (2, ["--data=/nowhere"],
                 "mnist: --data: read /nowhere/train-images-idx3-ubyte.gz: No such file or directory\n"),
                (2, ["--checkpoint-async"], "mnist: --checkpoint-async: needs --checkpoint FILE\n"),
                (2, ["--checkpoint=/nowhere/x.pt"],
                 "mnist: --checkpoint: write to folder /nowhere: No such file or directory\n"),
                (2, ["--checkpoint", folder],
                 f"mnist: --checkpoint: '{folder}' given, expected a regular file or the name of a new one\n"),
                (2, ["--checkpoint=/dev/null"],
                 "mnist: --checkpoint: '/dev/null' given, expected a regular file or the name of a new one\n"),
                (1, ["--checkpoint", self.checkpoint, "--resume"],
                 f"mnist: load checkpoint {self.checkpoint}: no zip file: it is too short\n")):
            with self.subTest(flags=flags):
                done = self.mnist(*flags)
                self.assertEqual((done.returncode, done.stderr), (code, expected))
                self.assertNotIn("accuracy", done.stdout)

    def test_explains_itself(self):
        done = self.mnist("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("--checkpoint FILE", done.stdout)


class MnistOnTheDigitsOfTheProject(unittest.TestCase):
    def test_learns(self):
        done = support.run(support.MNIST, "--epochs=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(float(support.value_of("accuracy", done.stdout)), 0.85)


if __name__ == "__main__":
    os.chdir(support.ROOT)
    unittest.main()
