"""One worker of launch(): prepares the main module, calls the function, writes its result. argv[1]
is the folder of the launch.

It is run as a file, so that a worker needs nothing of its caller's sys.path to start.
"""

from __future__ import annotations

import os
import sys

# This file's folder would put its names before those of the standard library.
if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
    del sys.path[0]

import importlib  # noqa: E402
import json  # noqa: E402
import multiprocessing.spawn  # noqa: E402
import pickle  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
from typing import Any  # noqa: E402

# launch() looks for it in __main__, which is this module until the caller's one has been imported.
_ddprun_prepares = True


def write_whole(path: str, content: bytes) -> None:
    """The file appears whole or not at all."""
    with open(f"{path}.part", "wb") as file:
        file.write(content)
    os.replace(f"{path}.part", path)


def record(error: BaseException) -> None:
    """Leaves the error where ddprun reads it, in the form of torch's @record
    (multiprocessing/errors/error_handler.py, 2.11)."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.path.exists(path):
        return
    extra = {
        "py_callstack": "".join(
            traceback.format_exception(type(error), error, error.__traceback__)
        ),
        "timestamp": str(int(time.time())),
    }
    text = json.dumps(
        {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}
    )
    write_whole(path, text.encode(errors="replace"))


def call(folder: str) -> None:
    global _ddprun_prepares
    with open(os.path.join(folder, "call"), "rb") as file:
        setup = pickle.load(file)
        try:
            multiprocessing.spawn.prepare(setup["preparation"])
        finally:
            _ddprun_prepares = False
        fn, args = pickle.load(file)
    result = None
    try:
        result = fn(*args)
    except SystemExit as end:  # with 0 it is a success that returns nothing
        if end.code not in (None, 0):
            raise
    save(folder, result, setup)


def save(folder: str, result: Any, setup: Any) -> None:
    rank = os.environ["RANK"]
    try:
        content = importlib.import_module(setup["pickler"]).dumps(result)
    except Exception as error:
        raise TypeError(f"what rank {rank} returned cannot be pickled: {error}") from error
    limit = setup["max_result_bytes"]
    if len(content) > limit:
        raise ValueError(
            f"what rank {rank} returned has {len(content)} bytes, expected at most {limit}: "
            "save it and return its name"
        )
    # No two attempts have all of these alike, but if a round is met again. Then each rank writes
    # its file again.
    attempt = "-".join(
        os.environ.get(name, "")
        for name in ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "MASTER_PORT")
    )
    os.makedirs(os.path.join(folder, "results", attempt), exist_ok=True)
    write_whole(os.path.join(folder, "results", attempt, rank), content)


def main() -> None:
    try:
        call(sys.argv[1])
    except Exception as error:
        # The frames of this file tell the user nothing.
        trace = error.__traceback__
        while (
            trace is not None
            and trace.tb_next is not None
            and trace.tb_frame.f_code.co_filename == __file__
        ):
            trace = trace.tb_next
        record(error.with_traceback(trace))
        raise


if __name__ == "__main__":
    main()
