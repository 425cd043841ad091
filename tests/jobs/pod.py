#!/usr/bin/env python3
"""Runs a command as a kubelet's container runtime does, without one. It is process 1 in namespaces
of its own (pid, mount, network, names, IPC, user), on a read-only root. Its user has no capability
and no way to one. Only the standard library; needs root.

  pod.py --image FOLDER --tmp FOLDER --message FILE [--bind FROM:TO …] COMMAND [ARGUMENT …]

The image is the root. Beside its content the pod has /proc, /sys, a /dev as in OCI's runtime
specification, and /dev/shm of 64 MiB. It has /dev/termination-log (FILE), the emptyDir /tmp
(FOLDER), and the bound files. It exits as the command does.
"""

import argparse
import ctypes
import errno
import os
import pathlib
import socket
import stat
import subprocess
import sys

USER = 65532
# linux/sched.h, linux/mount.h, linux/prctl.h
NEW_MOUNT, NEW_NAMES, NEW_IPC, NEW_USER, NEW_PID, NEW_NETWORK = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NO_SETUID, NO_DEVICES, NO_PROGRAMS, REMOUNT, BIND, WITH_ALL_BELOW, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
SET_DUMPABLE, DROP_FROM_BOUNDING_SET, SET_NO_NEW_PRIVILEGES = 4, 24, 38
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
LIBC = ctypes.CDLL(None, use_errno=True)


def checked(result, what):
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def encoded(text):
    return None if text is None else os.fsencode(text)


def mount(source, target, kind=None, flags=0, data=None):
    checked(LIBC.mount(encoded(source), encoded(target), encoded(kind), ctypes.c_ulong(flags), encoded(data)), f"mount {target}")


def bind(source, target, flags=0):
    mount(source, target, flags=BIND | WITH_ALL_BELOW)
    if flags:
        mount(None, target, flags=BIND | REMOUNT | flags)


def furnish(options):
    """The pod's root, in a mount namespace that is ours."""
    image = options.image
    mount(None, "/", flags=WITH_ALL_BELOW | PRIVATE)
    mount(image, image, flags=BIND)
    for words in options.bind:
        source, target = words.split(":")
        bind(source, f"{image}{target}", READ_ONLY)
    mount("proc", image / "proc", "proc", NO_SETUID | NO_DEVICES | NO_PROGRAMS)
    mount("sysfs", image / "sys", "sysfs", READ_ONLY | NO_SETUID | NO_DEVICES | NO_PROGRAMS)
    mount("tmpfs", image / "dev", "tmpfs", NO_SETUID, "mode=755,size=64k")
    for name, (major, minor) in DEVICES.items():
        os.mknod(image / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
    for name, target in LINKS.items():
        os.symlink(target, image / "dev" / name)
    (image / "dev" / "shm").mkdir()
    mount("tmpfs", image / "dev" / "shm", "tmpfs", NO_SETUID | NO_DEVICES, "mode=1777,size=64m")
    (image / "dev" / "termination-log").touch()
    bind(options.message, image / "dev" / "termination-log")
    bind(options.tmp, image / "tmp")
    mount(None, image, flags=BIND | REMOUNT | READ_ONLY)


def enter(image):
    """The root is the image; the host's is nowhere any more (pivot_root(2), NOTES)."""
    os.chdir(image)
    checked(LIBC.syscall(ctypes.c_long(PIVOT_ROOT[os.uname().machine]), b".", b"."), "pivot_root")
    checked(LIBC.umount2(b".", DETACH), "umount2")
    os.chdir("/")


def give_up_privileges():
    """From here on this process is nobody: no capability is left, and no program that it executes
    may get one."""
    capability = 0
    while LIBC.prctl(DROP_FROM_BOUNDING_SET, capability, 0, 0, 0) == 0:
        capability += 1
    if ctypes.get_errno() != errno.EINVAL:  # else it is the first one that the kernel does not know
        checked(-1, "prctl")
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    checked(LIBC.prctl(SET_DUMPABLE, 1, 0, 0, 0), "prctl")  # else its files in /proc are root's
    checked(LIBC.unshare(NEW_USER), "unshare")
    for name, text in ("setgroups", "deny"), ("uid_map", f"{USER} {USER} 1"), ("gid_map", f"{USER} {USER} 1"):
        pathlib.Path("/proc/self", name).write_text(text)
    checked(LIBC.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")


def main():
    parser = argparse.ArgumentParser()
    for flag in "--image", "--tmp", "--message":
        parser.add_argument(flag, type=pathlib.Path, required=True)
    parser.add_argument("--bind", action="append", default=[])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    checked(LIBC.unshare(NEW_MOUNT | NEW_NAMES | NEW_IPC | NEW_NETWORK), "unshare")
    socket.sethostname((options.image / "etc" / "hostname").read_text().strip())
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    checked(LIBC.unshare(NEW_PID), "unshare")  # for the next child alone
    first = os.fork()
    if first == 0:
        try:
            furnish(options)
            enter(options.image)
            give_up_privileges()
            os.execv(options.command[0], options.command)
        except OSError as error:
            print(f"pod.py: {error}", file=sys.stderr, flush=True)
            os._exit(126)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))


if __name__ == "__main__":
    main()
