"""bench/parallel judges what the programs print. A stand-in for ddprun prints made-up numbers here.
Only the standard library."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import support

MIB = 1 << 20
DDPRUN = """#!/bin/sh
folder=$(dirname "$0")
echo "$@" >>"$folder/calls"
case "$*" in *bench-parallel*) side=ours ;; *) side=theirs ;; esac
head -n 1 "$folder/$side"
sed -i 1d "$folder/$side"
"""


class Judgement(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bin = pathlib.Path(folder.name) / "bin"
        self.bin.mkdir()
        for name, text in (("ddprun", DDPRUN), ("bench-parallel", "#!/bin/sh\n")):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def judged(self, ours, theirs, *options, grown=128, needed=128, their_loss=0.5, way="pipeline"):
        """Judges one row. `ours` and `theirs`: milliseconds of a step, by round."""
        rounds = {"ours": [f"{time / 1000} 0.5 {grown * MIB} {needed * MIB}" for time in ours],
                  "theirs": [f"{time / 1000} {their_loss} {grown * MIB}" for time in theirs]}
        for side, lines in rounds.items():
            (self.bin / side).write_text("\n".join(lines) + "\n")
        command = support.ROOT / "bench" / "parallel", f"--build={self.bin.parent}", f"--python={sys.executable}"
        row = f"--ways={way}", "--models=sum", f"--rounds={len(ours)}", *options
        return subprocess.run([*command, *row], capture_output=True, text=True)

    def assert_found(self, done, *lines):
        expected = "".join(f"bench/parallel: pipeline, sum: {line}\n" for line in lines)
        self.assertEqual((done.returncode, done.stderr), (1 if lines else 0, expected), done.stdout)

    def test_a_row_has_medians_their_ratio_and_memory(self):
        done = self.judged([12, 10, 11], [22, 33, 20], "--check")
        self.assert_found(done)
        self.assertEqual(done.stdout.splitlines()[-1],
                         "| pipeline, 1F1B, 2 ranks, much to sum | 11.0 (10.0 to 12.0) | 22.0 (20.0 to 33.0) | 2.00 | 128 | 128 (1.00 of it) | 128 (1.00 of it) |")

    def test_gpipe_has_a_row_of_its_own(self):
        done = self.judged([10], [20], way="gpipe")
        self.assertIn("| pipeline, GPipe, 2 ranks, much to sum | 10.0 (10.0 to 10.0) |", done.stdout, done.stderr)

    def test_each_side_is_first_in_every_other_round(self):
        self.judged([1, 1], [1, 1], "--steps=7")
        calls = [call.split() for call in (self.bin / "calls").read_text().splitlines()]
        self.assertEqual([call[3].rpartition("/")[2] == "bench-parallel" for call in calls], [True, False, False, True])
        self.assertEqual({" ".join(call[-6:]) for call in calls}, {"pipeline 8 512 4 7 0"})

    def test_a_slower_row_is_told_of(self):
        line = "20.0 ms a step, expected PyTorch's 10.0 or less"
        self.assert_found(self.judged([20, 20], [10, 10], "--check"), line)

    def test_a_slower_median_alone_is_noise(self):
        self.assert_found(self.judged([9, 20, 20], [10, 10, 10], "--check"))

    def test_memory_off_its_numbers_is_told_of(self):
        for grown, ratio in ((145, "1.13"), (112, "0.88")):
            line = f"memory {ratio} of the numbers, expected 0.90 to 1.10"
            self.assert_found(self.judged([1], [2], "--check", grown=grown), line)
        self.assert_found(self.judged([1], [2], "--check", grown=140))

    def test_a_small_model_tells_nothing_of_memory(self):
        self.assert_found(self.judged([1], [2], "--check", grown=90, needed=16))

    def test_only_losses_count_unless_asked(self):
        self.assert_found(self.judged([20], [10], grown=200))
        self.assert_found(self.judged([20], [10], their_loss=0.6), "the losses differ: 0.5, 0.6")


if __name__ == "__main__":
    support.run_tests()
