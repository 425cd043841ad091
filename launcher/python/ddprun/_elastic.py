"""elastic_launch(): a job as torch.distributed.launcher starts it, with ddprun as its agent.

Torch's own classes of errors are raised. They are imported when a job has failed, and not before.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Union,
)

from ._launch import (
    WORKER,
    as_dict,
    hand_on,
    raise_failed,
    read_json,
    read_results,
    refuse_while_imported,
    write_call,
)
from ._launch_config import config_flags, handled_signals, log_folder, writes_logs
from ._process import run
from ._program import find_program

Entrypoint = Union[Callable[..., Any], str]

# Switches of torchrun that a LaunchConfig has applied already, or that are about a script. Their
# variables must not apply them again. Flags that a config has go before their variables.
APPLIED_SWITCHES = ("STANDALONE", "MODULE", "NO_PYTHON", "RUN_PATH", "VIRTUAL_LOCAL_RANK")
TORCHS_TEMPORARY = "torchelastic_"  # of the folder that torch's DefaultLogsSpecs makes


class elastic_launch:  # noqa: N801  (torch's name)
    """elastic_launch(config, fn)(*args) runs fn(*args) in the workers of one ddprun. It returns
    {rank: what it returned}, of the ranks on this node.

    `config` is a LaunchConfig, of ddprun or of torch. `entrypoint` may be a program instead; then
    the arguments are its words, and nothing is returned. Raises torch's ChildFailedError if a
    worker failed, and torch's SignalException if this process was told to end. It is Failed if
    there was no worker to blame.
    """

    def __init__(self, config: Any, entrypoint: Entrypoint) -> None:
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> Dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args))


class Call(NamedTuple):
    """A program for ddprun."""

    words: List[str]  # its flags about the program, the program, the program's arguments
    python: str  # the interpreter for a script
    stdin: Optional[int]  # None: the caller's


def launch_agent(config: Any, entrypoint: Entrypoint, args: List[Any]) -> Dict[int, Any]:
    """Is elastic_launch(config, entrypoint)(*args), in the form of torch's function."""
    flags = config_flags(config)
    program = find_program()
    with tempfile.TemporaryDirectory(prefix="ddprun-launch-") as name, _logs(config) as logs:
        folder = pathlib.Path(name)
        call = _call(config, entrypoint, args, folder)
        error_report, error_file = folder / "report.json", folder / "error.json"
        command = [program, *flags, *logs, f"--error-report={error_report}", *call.words]
        variables = {
            **os.environ,
            "PYTHON_EXEC": call.python,
            "TORCHELASTIC_ERROR_FILE": str(error_file),
        }
        for switch in APPLIED_SWITCHES:
            if f"PET_{switch}" in variables:
                variables[f"PET_{switch}"] = "0"
        exit_code, number = run(command, variables, call.stdin, handled_signals(config))
        _share(error_report)
        if number is not None:
            _raise_signal(number)
        if exit_code != 0:
            hand_on(error_file)
            report = read_json(error_report)
            _raise_child_failed(_name(entrypoint, args), report)
            raise_failed(report, read_json(error_file), exit_code)
        return read_results(folder / "results")


def _call(config: Any, entrypoint: Entrypoint, args: Sequence[Any], folder: pathlib.Path) -> Call:
    if isinstance(entrypoint, str):
        return _program_call(entrypoint, [str(word) for word in args])
    if not callable(entrypoint):
        raise TypeError(f"entrypoint={entrypoint!r}: expected a function or the name of a program")
    own = getattr(entrypoint, "__module__", ""), getattr(entrypoint, "__qualname__", "")
    if own == ("torch.distributed.run", "run_script_path"):
        return Call(["--run-path", *map(str, args)], sys.executable, None)
    refuse_while_imported()
    write_call(folder, entrypoint, tuple(args), config.start_method == "fork")
    return Call([WORKER, str(folder)], sys.executable, subprocess.DEVNULL)


def _program_call(entrypoint: str, words: List[str]) -> Call:
    """A script of Python is handed over as such, so that ddprun can have standbys for it."""
    is_python = re.fullmatch(r"python[\d.]*", pathlib.Path(entrypoint).name)
    is_script = words[1:] and (not words[1].startswith("-") or words[1] == "-m" and words[2:])
    if is_python and words[:1] == ["-u"] and is_script:
        return Call(words[1:], entrypoint, None)
    return Call(["--no-python", entrypoint, *words], sys.executable, None)


def _has_files(folder: str) -> bool:
    return any(files for _, _, files in os.walk(folder))


def _is_torchs_temporary(folder: str) -> bool:
    """Whether torch has just made it. One of the user's may have such a name, but has content."""
    place, name = os.path.split(folder)
    is_named_so = place == tempfile.gettempdir() and name.startswith(TORCHS_TEMPORARY)
    return is_named_so and os.path.isdir(folder) and not os.listdir(folder)


@contextlib.contextmanager
def _logs(config: Any) -> Iterator[List[str]]:
    """Yields the flag of the folder for log files. One that nobody named goes when the job has
    ended well. After a failure it stays if it has files, since the error may name them."""
    named = log_folder(config)
    if named is None and "PET_LOG_DIR" in os.environ:
        yield []
        return
    folder = named or tempfile.mkdtemp(prefix="ddprun-elastic-")
    is_ours = named is None or _is_torchs_temporary(named)
    keep = False
    try:
        yield [f"--log-dir={folder}"]
    except Exception:
        keep = _has_files(folder)
        raise
    finally:
        if is_ours and not keep and not writes_logs(config):
            shutil.rmtree(folder, ignore_errors=True)


def _share(report: pathlib.Path) -> None:
    """Copies the report to the file that the user has named for ddprun."""
    wanted = os.environ.get("PET_ERROR_REPORT")
    if wanted:
        with contextlib.suppress(OSError):  # there is none if ddprun refused to start
            pathlib.Path(wanted).write_bytes(report.read_bytes())


def _name(entrypoint: Entrypoint, args: Sequence[Any]) -> str:
    """Returns the name for the head of torch's report, by torch's rule."""
    if not isinstance(entrypoint, str):
        return str(getattr(entrypoint, "__name__", entrypoint))
    if entrypoint == sys.executable:
        return next((str(word) for word in args if not str(word).startswith("-")), "")
    return entrypoint


def _torchs(module: str, name: str) -> Any:
    """Returns a class of torch.distributed.elastic.multiprocessing; None if torch is not there."""
    try:
        path = f"torch.distributed.elastic.multiprocessing.{module}"
        return getattr(importlib.import_module(path), name)
    except ImportError:
        return None


def _raise_signal(number: int) -> NoReturn:
    """Once the workers have ended. Without torch it is what Python has for the signal."""
    kind = _torchs("api", "SignalException")
    said = signal.Signals(number)
    if kind is not None:
        raise kind(f"Process {os.getpid()} got signal: {number}", sigval=said)
    if said == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def _raise_child_failed(name: str, report: Mapping[str, Any]) -> None:
    """Raises torch's error of the workers that failed; returns if none did, or without torch."""
    cause = as_dict(report.get("root_cause"))
    kind = _torchs("errors", "ChildFailedError")
    if cause.get("rank") is None or kind is None:
        return
    failure_of = _torchs("errors", "ProcessFailure")
    others = (worker for worker in report.get("other_workers") or () if "rank" in worker)
    failures = {worker["rank"]: _failure(failure_of, worker) for worker in [cause, *others]}
    # Torch takes the earliest for the cause, by whole seconds.
    root = failures[cause["rank"]]
    root.timestamp = min(failure.timestamp for failure in failures.values())
    raise kind(name=name, failures=failures)


def _failure(failure_of: Callable[..., Any], worker: Mapping[str, Any]) -> Any:
    """Returns torch's ProcessFailure of a worker in the report."""
    code = worker.get("exit_code")
    facts = {
        "local_rank": worker.get("local_rank", -1),
        "pid": worker.get("pid", -1),  # of another node's worker it is not known
        "exitcode": -1 if code is None else code,
    }
    try:
        failure = failure_of(**facts, error_file=worker.get("error_file") or "")
        has_record = failure.error_file == worker.get("error_file")
    except Exception:  # a broken record hides nothing
        failure, has_record = failure_of(**facts, error_file=""), False
    if not has_record:
        told = filter(None, [worker.get("reason"), worker.get("evidence"), worker.get("message")])
        failure.message = "; ".join(told) or failure.message
        failure.timestamp = _seconds(worker.get("time"))
    return failure


def _seconds(moment: Any) -> int:
    try:
        return int(datetime.fromisoformat(str(moment).replace("Z", "+00:00")).timestamp())
    except ValueError:
        return int(time.time())
