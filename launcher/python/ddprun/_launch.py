"""launch(): runs a function in the workers of one ddprun, and brings their results back.
elastic_launch() has the same ways.

The function, its arguments and the results travel as files in a private temporary folder, which
goes when launch() ends. _worker.py is the other end.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing.process
import os
import pathlib
import pickle
import sys
import tempfile
from typing import Any, Callable, Dict, Mapping, NoReturn, Optional, Sequence, TypeVar, Union, cast

from ._process import run
from ._program import find_program

T = TypeVar("T")

# A result is for numbers and small tables; weights belong into a checkpoint. A launch of many
# workers reads all of them into memory.
MAX_RESULT_BYTES = 256 << 20
WORKER = str(pathlib.Path(__file__).with_name("_worker.py"))


class Failed(RuntimeError):
    """The job did not succeed.

    rank: of the worker that failed first; None if no worker did (a wrong flag, a rendezvous that
        timed out).
    traceback: that worker's Python traceback; empty if it left none.
    report: ddprun's failure report (docs/torchrun.md, "The report as JSON"); empty if ddprun
        refused to start.
    exit_code: ddprun's.
    """

    def __init__(self, message: str, rank: Optional[int] = None, traceback: str = "",
                 report: Optional[Mapping[str, Any]] = None, exit_code: int = 1) -> None:
        super().__init__(message)
        self.rank = rank
        self.traceback = traceback
        self.report: Dict[str, Any] = dict(report or {})
        self.exit_code = exit_code

    def __reduce__(self) -> Any:  # the default hands over the message alone
        return type(self), (str(self), self.rank, self.traceback, self.report, self.exit_code)


def launch(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    *,
    nproc_per_node: Union[int, str] = "auto",
    flags: Sequence[str] = (),
) -> Dict[int, T]:
    """Runs fn(*args) in nproc_per_node workers and returns {rank: what it returned}, of the ranks
    on this node.

    The workers are ddprun's: they have RANK, WORLD_SIZE, MASTER_ADDR and so on. `flags` are
    ddprun's other options, such as ["--max-restarts=3"]. fn, args and results are pickled; what a
    notebook or a console defines needs the package cloudpickle. A script calls launch() below `if
    __name__ == "__main__":`, since each worker imports it. Raises Failed if the job did not
    succeed.
    """
    refuse_while_imported()
    _check_flags(flags)
    program = find_program()
    with tempfile.TemporaryDirectory(prefix="ddprun-launch-") as name:
        folder = pathlib.Path(name)
        write_call(folder, fn, tuple(args))
        error_report, error_file = folder / "report.json", folder / "error.json"
        # The caller's flags come later and win; the log folder would stay where it is otherwise.
        logs = [] if "PET_LOG_DIR" in os.environ else [f"--log-dir={folder / 'logs'}"]
        command = [
            program,
            f"--nproc-per-node={nproc_per_node}",
            *logs,
            *flags,
            f"--error-report={error_report}",
            WORKER,
            name,
        ]
        variables = {
            **os.environ,
            "PYTHON_EXEC": sys.executable,
            "TORCHELASTIC_ERROR_FILE": str(error_file),
        }
        exit_code = run(command, variables).exit_code
        if exit_code != 0:
            hand_on(error_file)
            raise_failed(read_json(error_report), read_json(error_file), exit_code)
        return read_results(folder / "results")


def refuse_while_imported() -> None:
    """A main module without the guard would launch again in each worker that imports it."""
    if getattr(sys.modules["__main__"], "_ddprun_prepares", False):
        raise RuntimeError(
            "a launch is called while a worker imports the main module: "
            'call it below if __name__ == "__main__":'
        )


def _check_flags(flags: Sequence[str]) -> None:
    if isinstance(flags, str):
        raise TypeError(f"flags={flags!r}: expected a list of options, such as [{flags!r}]")
    for flag in flags:
        if flag.split("=")[0].replace("_", "-") == "--error-report":
            raise ValueError(f"flags: {flag}: launch() has the report itself, in Failed.report")


def _preparation() -> Dict[str, Any]:
    """Returns the argument of multiprocessing.spawn.prepare(), as its get_preparation_data() has
    it.

    That function is not called. It fixes the start method of the caller's own processes, and hands
    over a key that may not be written.
    """
    data: Dict[str, Any] = {
        "sys_path": list(sys.path),
        "sys_argv": list(sys.argv),
        "dir": os.getcwd(),
    }
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if name is not None:
        data["init_main_from_name"] = name
    elif path is not None:
        # A relative name is relative to where the interpreter started.
        start = getattr(multiprocessing.process, "ORIGINAL_DIR", None) or os.getcwd()
        data["init_main_from_path"] = os.path.normpath(os.path.join(start, path))
    return data


def _cloudpickle(why: str) -> Any:
    """The package; where it is not installed the error is `why`, unless that is empty."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        if not why:
            return pickle
        raise TypeError(
            f"ddprun: {why}; pip install cloudpickle, or define it in a module"
        ) from None


def write_call(
    folder: pathlib.Path, fn: Callable[..., Any], args: Sequence[Any], as_forked: bool = False
) -> None:
    """Two pickles in one file. The first tells how to prepare the main module. The second is the
    call, for whose reading that module must be there.

    `as_forked`: the main module is not imported again, if cloudpickle can do without."""
    preparation = _preparation()
    if as_forked and importlib.util.find_spec("cloudpickle") is not None:
        preparation.pop("init_main_from_name", None)
        preparation.pop("init_main_from_path", None)
    has_main = "init_main_from_name" in preparation or "init_main_from_path" in preparation
    pickler: Any = pickle
    what = getattr(fn, "__qualname__", repr(fn))
    if not has_main:
        # Arguments, and what a partial() holds, may be defined there as well.
        is_own = getattr(fn, "__module__", "__main__") == "__main__"
        pickler = _cloudpickle(
            f"{what} is defined in a notebook or a console, where workers cannot import it"
            if is_own
            else ""
        )
    try:
        call = pickler.dumps((fn, args))
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        if pickler is not pickle:
            raise
        pickler = _cloudpickle(f"{what} and its arguments cannot be pickled ({error})")
        call = pickler.dumps((fn, args))
    setup = {
        "preparation": preparation,
        "pickler": pickler.__name__,
        "max_result_bytes": MAX_RESULT_BYTES,
    }
    (folder / "results").mkdir()
    (folder / "call").write_bytes(pickle.dumps(setup) + call)


def read_json(path: pathlib.Path) -> Dict[str, Any]:
    try:
        return as_dict(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def as_dict(value: Any) -> Dict[str, Any]:
    return cast(Dict[str, Any], value) if isinstance(value, dict) else {}


def hand_on(error_file: pathlib.Path) -> None:
    """The starter of the caller reads the caller's error there: a pod's termination message. A
    worker leaves a record of its own."""
    wanted = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not wanted or "TORCHELASTIC_RUN_ID" in os.environ:
        return
    with contextlib.suppress(OSError):  # the failure itself is what must be heard of
        pathlib.Path(wanted).write_bytes(error_file.read_bytes())


def raise_failed(report: Mapping[str, Any], error: Mapping[str, Any], exit_code: int) -> NoReturn:
    cause = as_dict(report.get("root_cause"))
    rank: Optional[int] = cause.get("rank")
    trace: str = cause.get("traceback") or ""
    if rank is not None:
        # If a worker left no record, its `reason` is torchrun's hint how to get one.
        death = (
            cause.get("reason") if cause.get("signal") else f"exit code {cause.get('exit_code')}"
        )
        reason = "; ".join(filter(None, [cause.get("message") or death, cause.get("evidence")]))
        raise Failed(
            f"rank {rank}: {reason}" + (f"\n\n{trace.rstrip()}" if trace else ""),
            rank,
            trace,
            report,
            exit_code,
        )
    own = error.get("message")
    said = (
        as_dict(own).get("message", own)
        or report.get("message")
        or report.get("signal")
        or "its lines on stderr say why"
    )
    raise Failed(f"ddprun ended with exit code {exit_code}: {said}", None, trace, report, exit_code)


def read_results(folder: pathlib.Path) -> Dict[int, Any]:
    """Those of the attempt that succeeded, the last one: each has a folder of its own."""
    if not folder.is_dir():  # a program returns nothing
        return {}
    attempts = sorted(folder.iterdir(), key=lambda attempt: attempt.stat().st_mtime_ns)
    results: Dict[int, Any] = {}
    for path in attempts[-1].iterdir() if attempts else ():
        if path.name.isdigit():  # what a worker was writing when it was killed has another name
            with path.open("rb") as file:
                results[int(path.name)] = pickle.load(file)
    return dict(sorted(results.items()))
