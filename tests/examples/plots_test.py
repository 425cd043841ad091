"""Pictures of the pages. Each is that of its record, and the command that records and draws them
works on a small case. Only the standard library."""

import csv
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

import support

DOCS = support.ROOT / "docs"
BUILD = pathlib.Path(os.environ.get("DDPRUN", support.ROOT / "build" / "bin" / "ddprun")).parents[1]
# By picture: the kind that draws it, and its record.
PICTURES = {"ring": ("ring", "ring.csv"), "sums": ("sums", "sums.csv"), "which": ("which", "which.md"),
            "scaling": ("scaling", "scaling.csv"), "updates": ("curves", "updates.csv")}


def plot(kind, source, svg):
    return subprocess.run([support.ROOT / "bench" / "plot", kind, source, svg], capture_output=True, text=True)


def words_of(svg):
    """The text elements of a picture, which must be XML."""
    return [element.text for element in xml.etree.ElementTree.fromstring(svg.read_text()).iter("{http://www.w3.org/2000/svg}text")]


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Pictures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def refused(self, kind, text):
        (self.folder / "record").write_text(text)
        done = plot(kind, self.folder / "record", self.folder / "picture.svg")
        self.assertFalse((self.folder / "picture.svg").exists())
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        return done.stderr.removeprefix(f"bench/plot: {self.folder}/record: ")

    def test_each_is_that_of_its_record(self):
        for name, (kind, record) in PICTURES.items():
            done = plot(kind, DOCS / record, self.folder / f"{name}.svg")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((self.folder / f"{name}.svg").read_text(), (DOCS / f"{name}.svg").read_text(), f"bench/plot {kind} docs/{record} docs/{name}.svg")

    def test_one_command_records_and_draws(self):
        ranks, ring = (2, 3), 3
        command = [support.ROOT / "bench" / "sums", f"--build={BUILD}", "--ranks=2,3", f"--ring={ring}", "--bytes=24000", "--folder", self.folder]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        sends = rows_of(self.folder / "ring.csv")
        self.assertEqual({(int(row["rank"]), int(row["to"])) for row in sends}, {(0, 1), (1, 2), (2, 0)})
        for row in sends:
            first = int(row["rank"]) + 2 * ring - int(row["step"]) + 1 + (row["phase"] == "all-gather")
            self.assertEqual((int(row["chunk"]), row["bytes"]), (first % ring, "8000"), row)
            self.assertLessEqual(float(row["begin_us"]), float(row["end_us"]))
        words = words_of(self.folder / "ring.svg")
        for row in sends:
            self.assertIn(f"chunk {row['chunk']} → rank {row['to']}", words)
            self.assertIn(f"{float(row['begin_us']) / 1000:.2f} – {float(row['end_us']) / 1000:.2f} ms", words)
        counted = rows_of(self.folder / "sums.csv")
        words = words_of(self.folder / "sums.svg")
        for row in counted:
            n, sent = int(row["ranks"]), int(row["sent"])
            formula = 24000 * (n - 1) * (2 / n if row["way"] != "parameter server" else 1 if row["rank"] == "0" else 1 / (n - 1))
            self.assertTrue(formula <= sent <= 1.1 * formula, row)
            if row["rank"] == "0" and row["way"] == "parameter server":
                self.assertIn(f"{sent / 1e6:.2f}", words)
        self.assertEqual(len(counted), 3 * sum(ranks))
        self.assertEqual(len(re.findall(r"^\| (?:parameter server|ring|mesh) \| [23] \|", done.stdout, re.MULTILINE)), 6, done.stdout)

    def test_a_record_that_says_nothing_is_refused(self):
        head = "rank,to,phase,step,chunk,bytes,begin_us,end_us\n"
        self.assertRegex(self.refused("ring", ""), r"^no rows; expected some with rank, to, ")
        self.assertRegex(self.refused("ring", head), r"^no rows; ")
        self.assertEqual(self.refused("ring", head + "0,1,all-gather,1,0,4,1,2\n1,0,all-gather,1,1,4,1,2\n"), "2 sends of 2 ranks; expected 4\n")
        self.assertRegex(self.refused("sums", "way,ranks\nring,2\n"), r"^no column gradient_bytes, rank, sent; expected ")
        self.assertRegex(self.refused("scaling", "example,side\nmnist,ours\n"), r"^no column machine, cores, ")
        self.assertRegex(self.refused("curves", ""), r"^no rows; expected some with way, seconds, loss")
        self.assertRegex(self.refused("which", "# A page\n"), r"^0 tables; expected two")
        self.assertIn("No such file or directory", plot("sums", self.folder / "none", self.folder / "p.svg").stderr)

    def test_bytes_that_the_ranks_cannot_divide_are_refused(self):
        done = subprocess.run([BUILD / "bin" / "bench-sums", "bytes", "3", "16"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("2 to 64 ranks, and bytes that are a multiple of 4 x ranks", done.stderr)


if __name__ == "__main__":
    support.run_tests()
