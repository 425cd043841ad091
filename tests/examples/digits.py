"""Sets of digits for tests. Only the standard library."""

import gzip
import pathlib
import struct

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "data" / "mnist_5k"
HEADER_BYTES = {"images-idx3": 16, "labels-idx1": 8}
ITEM_BYTES = {"images-idx3": 28 * 28, "labels-idx1": 1}


def write_subset(folder, train, held_out):
    """A set with the first digits of ours, so that an epoch takes a moment."""
    for part, count in (("train", train), ("t10k", held_out)):
        for kind in HEADER_BYTES:
            name = f"{part}-{kind}-ubyte.gz"
            whole = gzip.decompress((DIGITS / name).read_bytes())
            end = HEADER_BYTES[kind] + count * ITEM_BYTES[kind]
            subset = whole[:4] + struct.pack(">I", count) + whole[8:end]
            (pathlib.Path(folder) / name).write_bytes(gzip.compress(subset, mtime=0))
