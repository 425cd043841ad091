"""Runs ddprun below this process: it ends when this process does, and hears of its signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence

# Becomes ddprun. It is told to end when the process that called launch() dies, of SIGKILL too
# (PR_SET_PDEATHSIG is 1; prctl(2)). It has a process group of its own. Ctrl-C at a terminal and a
# notebook's interrupt go to the caller's group. A second signal would cut the workers' grace short.
# An interpreter of its own does that, since preexec_fn of subprocess is not safe in a process with
# threads.
BOUND_TO_PARENT = """\
import ctypes, os, sys
os.setpgid(0, 0)
ctypes.CDLL(None).prctl(1, int(sys.argv[1]), 0, 0, 0)
if os.getppid() != int(sys.argv[2]): sys.exit(1)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Ending(NamedTuple):
    exit_code: int  # ddprun's
    signal: Optional[int]  # the first one that this process got and handed on


def run(
    command: Sequence[str],
    variables: Mapping[str, str],
    stdin: Optional[int] = subprocess.DEVNULL,
    signals: Sequence[int] = (),
) -> Ending:
    """Runs the command to its end. An exception that ends this call ends the job first.

    `signals` are handed on to it in the main thread; elsewhere Python takes none. One that is
    ignored stays so.
    """
    bound = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        BOUND_TO_PARENT,
        str(int(signal.SIGTERM)),
        str(os.getpid()),
        *command,
    ]
    received: List[int] = []
    with _handed_on(signals, received) as hand_to:
        process = subprocess.Popen(bound, env=dict(variables), stdin=stdin)
        hand_to(process)
        try:
            exit_code = process.wait()
        except BaseException as error:
            _end(process, error)
            raise
    return Ending(exit_code, received[0] if received else None)


def _end(process: subprocess.Popen[bytes], error: BaseException) -> None:
    process.send_signal(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
    try:
        process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


@contextlib.contextmanager
def _handed_on(
    signals: Sequence[int], received: List[int]
) -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Yields what takes the process that gets the signals, also those that came before it was
    there. `received` gets their numbers."""
    processes: List[subprocess.Popen[bytes]] = []
    waiting: List[int] = []

    def send() -> None:
        # pop() takes one for good. A signal may come at any place here, and is sent once.
        with contextlib.suppress(IndexError):
            while processes:
                processes[0].send_signal(waiting.pop(0))

    def hand_on(number: int, _: Optional[FrameType]) -> None:
        received.append(number)
        waiting.append(number)
        send()

    def hand_to(process: subprocess.Popen[bytes]) -> None:
        processes.append(process)
        send()

    in_main = threading.current_thread() is threading.main_thread()
    wanted = signals if in_main else ()
    before = {
        number: signal.signal(number, hand_on)
        for number in wanted
        if signal.getsignal(number) not in (signal.SIG_IGN, None)  # None: not set by Python
    }
    try:
        yield hand_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
