"""Hosts that lack something: IPv6, IPv4, a name that is known, every file of a Linux but ddprun."""

import ctypes
import errno
import os
import pathlib
import platform
import shutil
import struct
import subprocess
import unittest

from machine import free_port
from support import DDPRUN, PRINT_ENV, JobTest, main, parse_env, sanitized, with_variables

# linux/seccomp.h, linux/filter.h, linux/prctl.h
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
RETURN_ERRNO, RETURN_ALLOW = 0x50000, 0x7FFF0000
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
OFFSET_OF_NUMBER, OFFSET_OF_FIRST_ARGUMENT = 0, 16
SOCKET_CALL = {"x86_64": 41, "aarch64": 198}
AF_INET6 = 10
LIBC = ctypes.CDLL(None, use_errno=True)
STATIC_WORKER = pathlib.Path(DDPRUN).with_name("static_worker")
# A source of names for /etc/nsswitch.conf that ends whatever loads it.
TRAP = pathlib.Path(DDPRUN).with_name("libnss_trap.so.2")


class Program(ctypes.Structure):
    """struct sock_fprog"""
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def without_ipv6():
    """Runs in the child before exec. From here on sockets of IPv6 are refused as on a host booted
    with ipv6.disable=1."""
    steps = ((LOAD, 0, 0, OFFSET_OF_NUMBER), (JUMP_EQUAL, 0, 3, SOCKET_CALL[platform.machine()]),
             (LOAD, 0, 0, OFFSET_OF_FIRST_ARGUMENT), (JUMP_EQUAL, 0, 1, AF_INET6),
             (RETURN, 0, 0, RETURN_ERRNO | errno.EAFNOSUPPORT), (RETURN, 0, 0, RETURN_ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = Program(len(steps), ctypes.addressof(code))
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def can_unshare(*kinds):
    return subprocess.run(["unshare", *kinds, "true"], capture_output=True).returncode == 0


class HostsTest(JobTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()

    def node(self, endpoint, is_host, *args, **options):
        hosting = "" if is_host is None else f"is_host={is_host},"
        return self.start("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint={endpoint}:{self.port}",
                          f"--rdzv-conf={hosting}join_timeout=20,read_timeout=20", *args, **options)

    def ranks(self, *jobs):
        """The ranks of all workers, and the masters that they were told."""
        results = [job.finish() for job in jobs]
        self.assertEqual([code for code, _, _ in results], [0] * len(jobs), results)
        envs = [parse_env(line) for _, out, _ in results for line in out.splitlines()]
        return sorted(env["RANK"] for env in envs), {env["MASTER_ADDR"] for env in envs}


@unittest.skipUnless(platform.machine() in SOCKET_CALL, f"the number of socket(2) on {platform.machine()} is not known here")
class NoIpv6(HostsTest):
    def test_one_node(self):
        self.assertEqual(self.ranks(self.start(self.script(PRINT_ENV), preexec_fn=without_ipv6))[0], ["0"])

    def test_a_host_serves_guests_on_every_address(self):
        # 192.0.2.1 is nobody's (RFC 5737), so that the host, told that it is one, does not bind
        # that address alone.
        script = self.script(PRINT_ENV)
        host = self.node("192.0.2.1", 1, script, preexec_fn=without_ipv6)
        guest = self.node("127.0.0.1", 0, script, preexec_fn=without_ipv6)
        self.assertEqual(self.ranks(host, guest)[0], ["0", "1"])


@unittest.skipUnless(shutil.which("ip") and can_unshare("--net"), "network namespaces need CAP_SYS_ADMIN and iproute2")
class Ipv6Alone(HostsTest):
    PREFIX = ("unshare", "--net", "sh", "-c", 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec "$@"', "sh")

    def test_one_node(self):
        ranks, masters = self.ranks(self.start("--nproc-per-node=2", self.script(PRINT_ENV), prefix=self.PREFIX))
        self.assertEqual((ranks, masters), (["0", "1"], {"::1"}))

    def test_standalone(self):
        self.assertEqual(self.ranks(self.start("--standalone", self.script(PRINT_ENV), prefix=self.PREFIX))[0], ["0"])

    def test_two_nodes(self):
        both = self.script(f"""#!/bin/sh
run() {{ {DDPRUN} --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=[::1]:{self.port} --rdzv-conf=is_host=$1 worker.sh; }}
run 1 & run 0 && wait $!
""", "both.sh")
        self.script(PRINT_ENV)
        done = subprocess.run([*self.PREFIX, both], cwd=self.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(parse_env(line)["RANK"] for line in done.stdout.splitlines()), ["0", "1"])


@unittest.skipUnless(can_unshare("--mount"), "mounts of one's own need CAP_SYS_ADMIN")
class Names(HostsTest):
    """Names of hosts, with files in /etc that only this test's jobs see. No name server answers
    them."""

    def setUp(self):
        super().setUp()
        self.files = {name: self.folder / name for name in ("hosts", "resolv.conf", "nsswitch.conf")}
        for name, text in (("hosts", "127.0.0.1 localhost\n"), ("resolv.conf", "nameserver 127.0.0.1\n"),
                           ("nsswitch.conf", "hosts: files dns\n")):
            self.files[name].write_text(text)

    def start_on(self, *args, **options):
        mounts = "".join(f"mount --bind {path} /etc/{name} && " for name, path in self.files.items() if os.path.exists(f"/etc/{name}"))
        return self.node(*args, prefix=("unshare", "--mount", "sh", "-c", mounts + 'exec "$@"', "sh"), **options)

    def know(self, name, address="127.0.0.1"):
        with open(self.files["hosts"], "a") as hosts:
            hosts.write(f"{address} {name}\n")

    def test_a_name_that_comes_late(self):
        script = self.script(PRINT_ENV)
        guest = self.start_on("late.example", 0, script)
        line = guest.process.stderr.readline()
        self.assertIn("the host 'late.example' of the rendezvous is not known yet", line)
        self.know("late.example")
        host = self.start_on("late.example", 1, script)
        self.assertEqual(self.ranks(host, guest)[0], ["0", "1"])

    def test_a_name_that_never_comes(self):
        job = self.start_on("never.example", 0, "--rdzv-conf=is_host=0,join_timeout=5", "/bin/true")
        code, out, err = job.finish()
        self.assertEqual((code, out), (1, ""))
        waits, gave_up = err.splitlines()
        self.assertIn("'never.example'", waits)
        self.assertIn("'never.example' was looked up for 5 s: Host not found", gave_up)

    def test_a_host_without_ipv6_finds_out_by_itself_that_it_hosts(self):
        # As Debian's hosts file has a host's own name. Others know it by another address, so all of
        # them are served.
        self.know("own.example", "127.0.1.1")
        script = self.script(PRINT_ENV)
        jobs = [self.start_on("own.example", None, script, preexec_fn=without_ipv6) for _ in range(2)]
        self.assertEqual(self.ranks(*jobs)[0], ["0", "1"])

    def test_sources_of_names_that_are_plugins_of_libc(self):
        """Debian 13 names some in this file, made for another libc than the one in ddprun. It must
        load none of them."""
        if not TRAP.exists():
            self.skipTest(f"{TRAP} is not built: a sanitizer's build is linked dynamically")
        self.files["nsswitch.conf"].write_text("passwd: trap files\nservices: trap files\nhosts: trap [!UNAVAIL=return] files dns\n")
        self.know("meeting.example")
        script = self.script(PRINT_ENV)
        env = with_variables(LD_LIBRARY_PATH=str(TRAP.parent))
        jobs = [self.start_on("meeting.example", is_host, script, env=env) for is_host in (1, 0)]
        self.assertEqual(self.ranks(*jobs)[0], ["0", "1"])


@unittest.skipIf(sanitized(), "a sanitizer's build is linked dynamically")
@unittest.skipUnless(os.geteuid() == 0 and can_unshare("--mount"), "chroot(2) needs root")
class NothingButDdprun(HostsTest):
    """One file for every Linux: it runs where there is no libc, no shell and no temporary
    folder."""

    def setUp(self):
        super().setUp()
        self.root = self.folder / "root"
        for name in "proc", "dev", "etc":
            (self.root / name).mkdir(parents=True)
        os.mknod(self.root / "dev/null", 0o20666, os.makedev(1, 3))
        (self.root / "etc/hosts").write_text("127.0.0.1 localhost meeting-point\n")
        shutil.copy(DDPRUN, self.root / "ddprun")
        shutil.copy(STATIC_WORKER, self.root / "worker")

    def options(self):
        mounted = f'mount -t proc proc {self.root}/proc && exec chroot {self.root} "$@"'
        return {"prefix": ("unshare", "--mount", "sh", "-c", mounted, "sh"), "program": ("/ddprun",)}

    def lines(self, *jobs):
        results = [job.finish() for job in jobs]
        self.assertEqual([code for code, _, _ in results], [0] * len(jobs), results)
        lines = sorted(line for _, out, _ in results for line in out.splitlines())
        print("\n".join(lines))
        return lines

    def test_two_workers(self):
        lines = self.lines(self.start("--no-python", "--nproc-per-node=2", "/worker", **self.options()))
        self.assertEqual(lines, ["rank 0 of 2, master 127.0.0.1", "rank 1 of 2, master 127.0.0.1"])

    def test_two_nodes_that_meet_by_a_name(self):
        jobs = [self.node("meeting-point", is_host, "--no-python", "/worker", **self.options()) for is_host in (1, 0)]
        lines = self.lines(*jobs)
        self.assertEqual([line.partition(",")[0] for line in lines], ["rank 0 of 2", "rank 1 of 2"])


if __name__ == "__main__":
    main()
