"""What the benchmarks ask of this machine: its processes, their memory, a port."""
import socket


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


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


def pss_kib(pid):
    """Its memory; what it shares with others counts in part (proc_pid_smaps(5), Pss)."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
