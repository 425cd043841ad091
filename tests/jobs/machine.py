"""The tests' view of the machine that they share with others: its processes and its ports. Only the
standard library."""

import os
import pathlib
import random
import socket
import time

# Seconds until an awaited event counts as missing.
DEADLINE = float(os.environ.get("DDPRUN_TEST_DEADLINE", "30"))
PAUSE_S = 0.005  # between two looks at an outside event
FIRST_PORT = 10000  # below are those of a host's services
TCP_TABLES = "/proc/net/tcp", "/proc/net/tcp6"
LISTENING = "0A"  # proc_pid_net(5), the state st of a socket
# Its number among the system calls.
RECVMSG = {"x86_64": 47, "aarch64": 212}.get(os.uname().machine)


def wait_until(condition, what, deadline=None, pause=PAUSE_S):
    """Waits for an outside event that gives no notice (a process gone from /proc); fails after the
    deadline. With `pause=0` it misses less of what is there for a moment only."""
    end = time.monotonic() + (deadline or DEADLINE)
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline or DEADLINE} s in vain for: {what}")
        time.sleep(pause)  # else the looks take the processor that the event needs


def environment_of(pid):
    """b"NAME=value" entries; none for a process that is gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def state_of(pid):
    """The letter of proc(5), "Z" a zombie; None for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def waits_as_standby(pid):
    """Whether it is in recvmsg() on its connection, which is descriptor 3 (agent/standby)."""
    try:
        with open(f"/proc/{pid}/syscall") as file:
            return file.read().startswith(f"{RECVMSG} 0x3 ")
    except (FileNotFoundError, ProcessLookupError):
        return False


def waiting_standbys(pids, count=2):
    """Those of the pids that wait as standbys, when they are so many; else None."""
    found = set(filter(waits_as_standby, pids))
    return found if len(found) == count else None


def signal_waits(pid, signo):
    """Whether a signal waits to be taken by this process (proc(5), ShdPnd)."""
    with open(f"/proc/{pid}/status") as file:
        mask = next(line.split()[1] for line in file if line.startswith("ShdPnd"))
    return int(mask, 16) >> (signo - 1) & 1


def each_process_with(variable):
    """Pids of the live processes but this one that have this NAME=value in their environment. They
    come in any order, each as soon as it is seen. Zombies do not count."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    for pid in random.sample(pids, len(pids)):
        if pid != os.getpid() and variable.encode() in environment_of(pid) and state_of(pid) not in ("Z", None):
            yield pid


def processes_with(variable):
    return sorted(each_process_with(variable))


def free_port():
    """A port that nobody has, and that nobody gets who asks for any: the kernel hands out others.
    Until this process ends a name among the abstract sockets keeps it from all other tests."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        low, high = map(int, file.read().split())
    named = [port for port in range(FIRST_PORT, 1 << 16) if not low <= port <= high] or range(FIRST_PORT, 1 << 16)
    for port in random.SystemRandom().sample(named, len(named)):
        with socket.socket(socket.AF_UNIX) as claim, socket.socket() as trial:
            try:
                claim.bind(f"\0ddprun_test_port_{port}")
                trial.bind(("", port))
            except OSError:
                continue
            claim.detach()  # open until the end
            return port
    raise AssertionError("no port is free")


def listening_inodes(port, tables=TCP_TABLES):
    """Inodes of the sockets that listen on a TCP port, whosever they are."""
    rows = [row.split() for table in tables for row in pathlib.Path(table).read_text().splitlines()]
    return {row[9] for row in rows if row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port}
