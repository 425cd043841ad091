"""One rank of a stock DDP + Gloo script that stands still in its own way after some steps.

standing_worker.py KIND FILE: the last rank is to blame where one is. Each rank appends one line to
FILE when it has done its last step before that. KINDS says what a verdict must say of each kind,
and HEALTHY has kinds of which nothing may be said. standing_engine is the same on the engine.
"""

import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

STEPS, STEP_S, LAST_S = 10, 0.2, 1000
BUSY_S = 40  # a healthy rank works so long without a step
RANK = r"rank {rank}( on \S+)? "
PLACE = r" at stand_still \(standing_worker.py:\d+\)"
NOTHING = RANK + "does nothing" + PLACE
# The words of the verdict, {rank} for the one to blame. Kinds in ENDS end the job: Gloo and the
# engine notice it by themselves.
KINDS = {
    "sleep": NOTHING,
    "lock": NOTHING,
    "loader": NOTHING,
    "pipe": NOTHING,
    "store": NOTHING,
    "store_gone": NOTHING,
    "swallowed": NOTHING,
    "thread": NOTHING,
    "receive": NOTHING,
    "disk": RANK + r"is stuck in the kernel in \S+ at wait_in_kernel \(",
    "barrier": RANK + r"waits in barrier #\d+" + PLACE,
    "more": RANK + r"waits in barrier #\d+" + PLACE,
    "skipped": RANK + r"waits in (all_reduce|allreduce) #\d+ \(\S+\) at train \(",
    "shape": "Received data size doesn't match expected size",
    "order": RANK + r"waits in barrier #\d+ of group \d+" + PLACE,
    "ended": RANK + "has ended",
    "stopped": RANK + "is stopped",
    "frozen": RANK + "is frozen: the cgroup was frozen",
    "held": RANK + "does nothing, and no Python runs in it",
    "link": r"wait in all_reduce #\d+ \(3\)" + PLACE + ": all have come",
    "engine_skips": RANK + "does nothing",
    "engine_parts": r"rank {rank} waits in barrier",
}
ENDS = "shape", "engine_parts"
# A rank is at work, or nobody waits for it.
HEALTHY = ("spin", "held_spin", "checkpoint", "evaluation", "first_step", "compile", "download", "join",
           "swapping", "gdb", "pdb")


def stand_still(kind, torch, dist, rank, groups):
    guilty = rank == dist.get_world_size() - 1
    if kind == "sleep" and guilty:
        time.sleep(LAST_S)
    elif kind == "lock" and guilty:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif kind == "loader" and guilty:
        next(iter(torch.utils.data.DataLoader(Stuck(), num_workers=1)))
    elif kind == "pipe" and guilty:
        os.read(os.pipe()[0], 1)
    elif kind == "store" and guilty:
        dist.distributed_c10d._get_default_store().get("never set")
    elif kind == "store_gone" and guilty:
        drop_packets(lambda remote: remote == int(os.environ["MASTER_PORT"]))
        dist.distributed_c10d._get_default_store().set("unheard", "of")
        dist.distributed_c10d._get_default_store().get("unheard")
    elif kind == "swallowed" and guilty:
        try:
            raise OSError("the disk is full")
        except OSError:
            threading.Event().wait()
    elif kind == "thread" and guilty:
        thread = threading.Thread(target=time.sleep, args=(LAST_S,), daemon=True)
        thread.start()
        thread.join()
    elif kind == "disk" and guilty:
        wait_in_kernel()
    elif kind == "barrier":
        dist.barrier() if guilty else dist.all_reduce(torch.ones(3))
    elif kind == "more" and guilty:
        dist.barrier()
    elif kind == "skipped" and not guilty:
        dist.barrier()
    elif kind == "shape":
        mine = torch.ones(5 if guilty else 3)
        dist.all_gather([torch.ones_like(mine) for _ in range(dist.get_world_size())], mine)
    elif kind == "order":
        for group in groups[::-1] if guilty else groups:
            dist.barrier(group)
    elif kind == "ended":
        os._exit(0) if guilty else dist.new_group()
    elif kind == "stopped" and guilty:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "frozen" and guilty:
        freeze()
    elif kind == "held" and guilty:
        ctypes.PyDLL(None).sleep(LAST_S)
    elif kind == "receive":
        time.sleep(LAST_S) if guilty else dist.recv(torch.ones(1), dist.get_world_size() - 1)
    elif kind == "link":
        if guilty:
            drop_packets(lambda remote: remote != int(os.environ["MASTER_PORT"]))
        dist.all_reduce(torch.ones(3))


def be_busy(kind, torch, dist, rank):
    """Lets a healthy rank work for so long that others wait for it."""
    end = time.monotonic() + BUSY_S
    if rank != dist.get_world_size() - 1:
        return
    if kind == "spin":
        while time.monotonic() < end:
            pass
    elif kind == "held_spin":
        ctypes.PyDLL(None).qsort(ctypes.create_string_buffer(1 << 24), 1 << 24, 1,
                                 ctypes.cast(ctypes.PyDLL(None).strcmp, ctypes.c_void_p))
        while time.monotonic() < end:
            pass
    elif kind == "checkpoint":
        with open(os.devnull, "wb") as file:
            while time.monotonic() < end:
                torch.save(torch.ones(1 << 20), file)
    elif kind in ("evaluation", "first_step"):
        while time.monotonic() < end + (50 if kind == "first_step" else 0):
            torch.ones(256, 256) @ torch.ones(256, 256)
    elif kind == "compile":
        torch.compile(torch.nn.Sequential(*(torch.nn.Linear(size, size + 1) for size in range(8, 24))))(torch.ones(4, 8))
    elif kind == "download":
        download(end)
    elif kind == "swapping":
        walk_through_small_memory(end)
    elif kind == "gdb":
        subprocess.run(["gdb", "-p", str(os.getpid()), "-batch", "-ex", f"shell sleep {BUSY_S}"],
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    elif kind == "pdb":
        wait_in_pdb()


class Stuck:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        time.sleep(LAST_S)


def wait_in_kernel():
    """vfork(2) waits in uninterruptible sleep until the child has ended or called execve(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    stack = ctypes.create_string_buffer(1 << 16)
    clone_vm, clone_vfork = 0x100, 0x4000
    child = ctypes.cast(libc.pause, ctypes.c_void_p)
    top = ctypes.c_void_p((ctypes.addressof(stack) + len(stack)) & ~0xF)
    libc.clone(child, top, clone_vm | clone_vfork | signal.SIGCHLD, None)


def own_sockets():
    """(local port, remote port) of each connection of this process."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/self/fd/{name}").removeprefix("socket:[").rstrip("]"))
    for table in "/proc/self/net/tcp", "/proc/self/net/tcp6":
        for row in pathlib.Path(table).read_text().splitlines()[1:]:
            fields = row.split()
            if fields[9] in inodes and fields[3] == "01":
                yield tuple(int(address.rpartition(":")[2], 16) for address in fields[1:3])


def drop_packets(is_chosen):
    """Nothing comes or goes any more on connections whose remote port is chosen. This host is a
    network namespace of its own."""
    ports = ", ".join(str(local) for local, remote in own_sockets() if is_chosen(remote))
    rules = f"""table inet standing {{
        chain input {{ type filter hook input priority 0; tcp dport {{ {ports} }} drop; }}
        chain output {{ type filter hook output priority 0; tcp sport {{ {ports} }} drop; }}
    }}"""
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)


def cgroup_of_its_own(tree, name):
    """This process is in it when this returns. The campaign removes it."""
    folder = pathlib.Path(tree) / f"standing_{name}_{os.getpid()}"
    folder.mkdir()
    return folder


def freeze():
    unified = next(place for place in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")
                   if os.path.exists(f"{place}/cgroup.controllers"))
    folder = cgroup_of_its_own(unified, "frozen")
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    (folder / "cgroup.freeze").write_text("1")
    time.sleep(LAST_S)


def walk_through_small_memory(end):
    """Reads a file that does not fit into a cgroup's memory: each page comes from the disk."""
    import mmap
    v1 = os.path.exists("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    folder = cgroup_of_its_own("/sys/fs/cgroup/memory" if v1 else "/sys/fs/cgroup", "memory")
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        for _ in range(256):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        (folder / ("memory.limit_in_bytes" if v1 else "memory.high")).write_text(str(64 << 20))
        (folder / "cgroup.procs").write_text(str(os.getpid()))
        pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        while time.monotonic() < end:
            sum(pages[at] for at in range(0, len(pages), 4096))


def download(end):
    """100 KiB a second, in one call."""
    ours, theirs = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = os.fork()
        if sender == 0:
            with socket.create_connection(server.getsockname()) as connection:
                while time.monotonic() < end:
                    connection.sendall(bytes(50 << 10))
                    time.sleep(0.5)
            os._exit(0)
        connection, _ = server.accept()
        memory = bytearray(1 << 30)
        connection.recv_into(memory, len(memory), socket.MSG_WAITALL)
        os.waitpid(sender, 0)


def wait_in_pdb():
    """A user who thinks for so long before going on."""
    import pdb
    reads, writes = os.pipe()
    user = threading.Timer(BUSY_S, os.write, (writes, b"continue\n"))
    user.start()
    pdb.Pdb(stdin=os.fdopen(reads), stdout=open(os.devnull, "w"), nosigint=True).set_trace()
    user.join()


def train(net, optimizer, torch):
    optimizer.zero_grad()
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()


def join_uneven(net, optimizer, torch, rank, ranks):
    """The last rank has no more batches, and follows the others' collectives."""
    from torch.distributed.algorithms.join import Join
    with Join([net]):
        for _ in range(0 if rank == ranks - 1 else round(BUSY_S / STEP_S)):
            train(net, optimizer, torch)
            time.sleep(STEP_S)


def main():
    kind, file = sys.argv[1:]
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group() for _ in range(2)]
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(2 * STEPS):
        if step > 0 or kind != "first_step":
            train(net, optimizer, torch)
            time.sleep(STEP_S)
        if step == (0 if kind == "first_step" else STEPS):
            with open(file, "a") as told:
                told.write(f"{rank} {time.time()}\n")
            stand_still(kind, torch, dist, rank, groups)
            be_busy(kind, torch, dist, rank)
            if kind == "join":
                join_uneven(net, optimizer, torch, rank, dist.get_world_size())


if __name__ == "__main__":
    main()
