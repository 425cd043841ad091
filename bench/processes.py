"""The benchmarks' view of this machine: its processes, their memory, a port."""
import os
import socket


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def is_listened_on(port):
    """Whether some process of this host listens on the TCP port (proc_pid_net(5): state 0A)."""
    for table in "/proc/net/tcp", "/proc/net/tcp6":
        with open(table) as file:
            rows = [line.split() for line in file]
        if any(row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port for row in rows[1:]):
            return True
    return False


def listens(pid, port):
    """Whether this process itself has a socket that listens on the TCP port."""
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file][1:]
    inodes = {f"socket:[{row[9]}]" for row in rows
              if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}") in inodes:
                return True
        except FileNotFoundError:
            pass  # closed meanwhile
    return False


def family(pid):
    """The process and all below it. Those that end meanwhile may be left out."""
    found = [pid]
    for parent in found:
        try:
            with open(f"/proc/{parent}/task/{parent}/children") as file:
                found += map(int, file.read().split())
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def runs_program(pid, program):
    """Whether the process lives and was made from this file."""
    try:
        return os.path.samefile(f"/proc/{pid}/exe", program)
    except (FileNotFoundError, ProcessLookupError):
        return False


def pss_kib(pid):
    """Its memory; what it shares with others counts in part (proc_pid_smaps(5), Pss). 0 for one
    that has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("Pss:")), 0)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def memory_kib(pid):
    """Returns the resident memory, and its part that is no page of a file: (all, its own). Both
    hold the swapped part too (proc_pid_smaps(5), Rss, Anonymous, Swap)."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        kib = {name: int(words[0]) for name, *words in map(str.split, file) if name in ("Rss:", "Anonymous:", "Swap:")}
    return kib["Rss:"] + kib["Swap:"], kib["Anonymous:"] + kib["Swap:"]
