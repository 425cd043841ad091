#!/usr/bin/env python3
"""The archive of `scripts/gpu_kit pack`, unpacked elsewhere. Each stage runs there on the CPU."""

import json
import os
import sys
import tarfile

from support import DDPRUN, ROOT, FolderTest, built, made, run, run_tests_or_make, variables

STAGE_S = 560  # a stage beside other tests, whose PyTorch may take a minute to start
PYTHON = ROOT / ".venv" / "bin" / "python"
sys.path.insert(0, str(ROOT / "scripts"))

from kit import pack, plan  # noqa: E402


def make_kit(folder):
    """Packs the built programs, and unpacks the archive into the folder."""
    built(PYTHON, *(DDPRUN.parent / name for name in pack.PROGRAMS))
    archive = folder / "kit.tar.xz"
    run(sys.executable, "-B", ROOT / "scripts" / "gpu_kit", "pack", f"--bin={DDPRUN.parent}", f"--out={archive}")
    with tarfile.open(archive) as file:
        file.extractall(folder)


class GpuKit(FolderTest):
    def setUp(self):
        super().setUp()
        self.kit = made(make_kit) / pack.NAME
        self.results = self.folder / "results.jsonl"

    def call(self, *words, expect=0):
        # Neither the folder of the project nor its Python is beside the unpacked kit.
        return run(sys.executable, "-B", self.kit / "scripts" / "gpu_kit", *words, f"--results={self.results}", expect=expect, deadline=STAGE_S,
                   cwd=self.folder, env=variables(PATH="/usr/bin:/bin"))

    def check_stage(self, name):
        """Its record, after a dry run of it alone that missed no goal."""
        said = self.call("run", "--dry", f"--only={name}", f"--python={PYTHON}")
        (line,) = self.results.read_text().splitlines()
        record = json.loads(line)
        self.assertEqual((record["stage"], record["dry"]), (name, True))
        self.assertIn(record["outcome"], ("passed", "partly run", "not run"), said)
        self.assertIn(f"{name}: {record['outcome']}\n", said)
        self.assertTrue(record["commit"])
        for figure in record["figures"]:
            self.assertIn(figure["what"], said)
        return record

    def figures(self, record):
        return {figure["what"]: figure for figure in record["figures"]}

    def test_the_archive_is_small_and_has_what_the_stages_need(self):
        self.assertLessEqual(os.path.getsize(self.kit.parent / "kit.tar.xz"), pack.MOST_BYTES)
        manifest = json.loads((self.kit / "manifest.json").read_text())
        self.assertLessEqual({f"build/bin/{name}" for name in pack.PROGRAMS}, set(manifest["files"]))
        self.assertFalse([name for name in manifest["files"] if name.endswith(".pyc")])

    def test_a_damaged_kit_does_not_run(self):
        """A copy of its scripts, of which one has another byte."""
        run("cp", "-r", self.kit, self.folder / "copy")
        with open(self.folder / "copy" / "LICENSE", "a", encoding="utf-8") as file:
            file.write("x")
        said = run(sys.executable, "-B", self.folder / "copy/scripts/gpu_kit", "run", "--dry", f"--results={self.results}", expect=1)
        self.assertIn("the kit is damaged: LICENSE differs", said)

    def test_nothing_passes_without_a_gpu(self):
        """Only a dry run may do without."""
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("there is a GPU here")
        names = "facts", "gpu-tests", "capture"
        self.call("run", f"--only={','.join(names)}", f"--python={PYTHON}", expect=1)
        records = [json.loads(line) for line in self.results.read_text().splitlines()]
        self.assertEqual([(record["stage"], record["outcome"]) for record in records], [(name, "missed") for name in names])
        self.assertEqual(self.call("table", expect=1).splitlines()[0].split()[0], "stage", "it was no dry run")

    def test_each_stage_has_a_test_here(self):
        tests = {name.removeprefix("test_stage_") for name in dir(self) if name.startswith("test_stage_")}
        self.assertEqual(tests, {stage.module for stage in plan.STAGES})

    def test_stage_facts(self):
        record = self.check_stage("facts")
        self.assertEqual(self.figures(record)["torch, and that of the programs"]["result"], "met")
        self.assertEqual(self.figures(record)["doctor: checks"]["result"], "met")

    def test_stage_gpu_tests(self):
        record = self.check_stage("gpu-tests")
        self.assertEqual(self.figures(record)["worker_nccl_test: failed"]["result"], "met")
        if self.figures(record)["worker_nccl_test: passed"]["ours"] == 0:
            self.fail("not even the tests ran that need no GPU")

    def test_stage_training(self):
        figure = self.figures(self.check_stage("training"))["mnist: loss of the last epoch"]
        self.assertEqual(figure["ours"], figure["pytorch"], "on CPUs each digit is the same")

    def test_stage_optimizers(self):
        for figure in self.check_stage("optimizers")["figures"]:
            self.assertGreater(figure["ratio"], 0)

    def test_stage_two_ranks(self):
        """The CPU's sums have PyTorch's bits, so each hash is equal here, too."""
        figures = self.check_stage("two-ranks")["figures"]
        self.assertIn("gradients, default", [figure["what"] for figure in figures])
        for figure in figures:
            self.assertEqual(figure["result"], "met", figure["what"])
            if figure["what"].startswith(("weights", "gradients")):
                self.assertRegex(figure["ours"], "^[0-9a-f]{16}$")

    def test_stage_steps(self):
        figures = self.figures(self.check_stage("steps"))
        for what in "step of mlp, views, N=1", "step of mlp, bf16, N=1", "step of mlp, views, N=2":
            self.assertGreater(figures[what]["ratio"], 0)
            self.assertEqual(figures[what.replace("step", "loss")]["result"], "met")
        self.assertGreater(figures["step of mlp: DataParallel over none, N=1"]["ours"], 0)

    def test_stage_buckets(self):
        self.assertGreaterEqual(self.figures(self.check_stage("buckets"))["buckets of 25 MiB over the best ones"]["ours"], 1)

    def test_stage_capture(self):
        self.assertEqual(self.check_stage("capture")["outcome"], "not run")

    def test_stage_faults(self):
        figures = self.figures(self.check_stage("faults"))
        for name in "killed_rank", "a_peer_never_comes", "groups_fail_together", "memory_dropped_in_another_thread":
            self.assertEqual(figures[name]["result"], "met", name)
        absent = {name: figure["absent"] for name, figure in figures.items() if figure["result"] == "not run"}
        self.assertEqual(absent["sum_in_a_capture"], "it needs a GPU")
        self.assertEqual(len(absent) + 4, len(figures))

    def test_stage_costs(self):
        figures = self.figures(self.check_stage("costs"))
        self.assertGreater(figures["host time of a sum of 1 MiB, N=2"]["ratio"], 0)
        self.assertGreater(figures["SyncBatchNorm, forward and backward, N=2"]["ours"], 0)
        self.assertGreater(figures["step with ZeRO over one with Adam, N=2"]["ours"], 0)

    def test_stage_endurance(self):
        self.assertEqual(self.figures(self.check_stage("endurance"))["attempts that trained"]["result"], "met")

    def test_stage_standby(self):
        figures = self.figures(self.check_stage("standby"))
        self.assertEqual(figures["files of the driver that a standby has open"]["result"], "met")
        self.assertGreater(figures["restart with a standby"]["ours"], 0)


if __name__ == "__main__":
    run_tests_or_make(make_kit)
