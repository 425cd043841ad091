"""A stage's process group: its lines while it runs, its limit, and the end of all below it.

Workers of ddprun have sessions of their own, so a group is not enough. This process takes in the
orphans of a stage, and ends whatever is below it. Stages run one after another.
"""

import ctypes
import os
import select
import signal
import subprocess
import time
import typing

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
GRACE_S = 3  # from SIGTERM to SIGKILL
# The limit for the end after SIGKILL. A process that waits in a driver may never end.
KILL_S = 3
LOOK_S = 0.02
PIECE_BYTES = 65536


class End(typing.NamedTuple):
    exit_code: int
    was_cut: bool
    seconds: float
    left: list  # processes that even SIGKILL did not end


def take_in_orphans():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def state_and_parent(pid):
    """The letter of the state and the parent, as proc(5) has them; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return state, int(parent)


def below(root):
    """All living processes below this one, whatever their sessions are."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        found = state_and_parent(name)
        if found is not None and found[0] != "Z":
            children.setdefault(found[1], []).append(int(name))
    tree = [root]
    for pid in tree:
        tree += children.get(pid, [])
    return tree[1:]


def send(pids, signo):
    for pid in pids:
        try:
            os.kill(pid, signo)
        except ProcessLookupError:
            pass


def reap_orphans():
    """Takes the exits of orphans. The stage itself has ended by then."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def ends_within(root, limit_s):
    """Waits until nothing is left below the process. An orphan's end gives no other notice."""
    deadline = time.monotonic() + limit_s
    while below(root) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return not below(root)


def end_all(process):
    """Ends the stage and what it started; returns the processes that do not end."""
    if process.poll() is None:
        send([-process.pid], signal.SIGTERM)
        ends_within(os.getpid(), GRACE_S)
    deadline = time.monotonic() + KILL_S
    while below(os.getpid()) and time.monotonic() < deadline:
        send(below(os.getpid()), signal.SIGKILL)
        process.poll()
        time.sleep(LOOK_S)
    return below(os.getpid())


def read_lines(process, deadline, take):
    """Hands each line to `take` until the process ends, or closes its stdout. Others may hold that
    open for longer. Returns whether it was in time."""
    pipe, ended, rest = process.stdout.fileno(), os.pidfd_open(process.pid), b""
    try:
        while (left := deadline - time.monotonic()) > 0:
            ready = select.select([pipe, ended], [], [], left)[0]
            piece = os.read(pipe, PIECE_BYTES) if pipe in ready else b""
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                take(line.decode(errors="replace"))
            if ready and not piece:
                return True
        return False
    finally:
        os.close(ended)


def run(command, env, limit_s, log, take):
    """Runs the command as a group, until its end or its limit. Its lines go to `take` as they come,
    and its stderr goes to the file `log`. Nothing below it is left."""
    began = time.monotonic()
    with open(log, "ab") as errors:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=errors, process_group=0)
    in_time = False
    try:
        in_time = read_lines(process, began + limit_s, take)
        if in_time:  # it closed its stdout, and may still run
            process.wait(max(0, began + limit_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        in_time = False
    finally:
        left = end_all(process)
        process.stdout.close()
        code = process.poll()
        reap_orphans()
    return End(code if code is not None else -signal.SIGKILL, not in_time,
               time.monotonic() - began, left)


def lines_behind(path, mark):
    """The lines of a log behind the last one that begins with the mark."""
    found = []
    with open(path, errors="replace", encoding="utf-8") as file:
        for line in file:
            if line.startswith(mark):
                found.clear()
            else:
                found.append(line)
    return found
